// SPDX-License-Identifier: Apache-2.0
// Stores of many keys, and how long it takes this thread to end one.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/store/store_state.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/thread_cpu.h"

namespace ddprun::store::testing {

inline constexpr int kManyKeys = 100'000;

template <typename Function>
double cpu_seconds_of(Function function) {
  const double begun = test::thread_cpu_seconds();
  function();
  return test::thread_cpu_seconds() - begun;
}

// The CPU time in which this thread frees a key space of kManyKeys.
inline double seconds_to_free_many_keys() {
  std::optional<StoreState> state(std::in_place);
  for (int key = 0; key < kManyKeys; ++key) {
    state->step(1, request_of(Opcode::kSet, std::to_string(key)));
  }
  return cpu_seconds_of([&] { state.reset(); });
}

}  // namespace ddprun::store::testing
