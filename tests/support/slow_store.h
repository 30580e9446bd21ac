// SPDX-License-Identifier: Apache-2.0
// A store whose wait takes a while. It detects callers that give each of two calls the whole
// time-out.
#pragma once

#include <sched.h>

#include "tests/support/shared_store.h"

namespace ddprun::test {

class SlowStore final : public SharedStore {
 public:
  static constexpr std::chrono::milliseconds kWaitTakes{20};

  void wait(const std::vector<std::string>& keys) override {
    time_out_of_wait = timeout();
    const Clock::time_point start = Clock::now();
    while (Clock::now() - start < kWaitTakes) ::sched_yield();
    SharedStore::wait(keys);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    time_out_of_get = timeout();
    return SharedStore::multi_get(keys);
  }

  // Returns whether the get after the wait had only the time that the wait left.
  bool kept_one_deadline() const {
    return time_out_of_get <= time_out_of_wait - kWaitTakes + std::chrono::milliseconds(1);
  }

  std::chrono::milliseconds time_out_of_wait{}, time_out_of_get{};
};

}  // namespace ddprun::test
