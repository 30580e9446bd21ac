// SPDX-License-Identifier: Apache-2.0
// A store of millions of keys makes nobody wait.
#include <algorithm>
#include <ctime>
#include <string>

#include "rendezvous/store/steady_table.h"
#include "rendezvous/store/store_state.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun::store;
using namespace ddprun::store::testing;

namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// The second SETs are there for the memory that the DELETEs have freed. The first test: another one's
// memory would be collected in this one's time.
TEST_CASE("StoreState: no request of millions takes long") {
  constexpr std::size_t kKeys = 1'000'000;
  StoreState state;
  double longest = 0;
  const double start = cpu_seconds();
  double before = start;
  for (const Opcode opcode : {Opcode::kSet, Opcode::kDeleteKey, Opcode::kSet}) {
    for (std::size_t i = 0; i < kKeys; ++i) {
      const std::string key = std::to_string(i);
      state.step(1, request_of(opcode, key));
      const double now = cpu_seconds();
      longest = std::max(longest, now - before);
      before = now;
    }
  }
  CHECK(state.num_keys() == kKeys);
  CHECK(longest < 0.005 * (before - start));
}

TEST_CASE("SteadyTable: none of millions of keys takes many steps to add or to erase") {
  constexpr std::size_t kKeys = 3'000'000;
  SteadyTable<int> table;
  std::uint64_t most = 0, before = 0;
  const auto count = [&] {
    most = std::max(most, table.num_steps() - before);
    before = table.num_steps();
  };
  for (std::size_t i = 0; i < kKeys; ++i) {
    table.try_emplace(std::to_string(i));
    count();
  }
  CHECK(table.size() == kKeys);
  CHECK(table.num_steps() > kKeys / 2);
  CHECK(table.num_steps() < 2 * kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) {
    table.erase(table.find(std::to_string(i)));
    count();
  }
  CHECK(table.empty());
  CHECK(table.num_steps() < 4 * kKeys);
  CHECK(most <= 40);
}
