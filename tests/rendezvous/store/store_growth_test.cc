// SPDX-License-Identifier: Apache-2.0
// A store of millions of keys makes nobody wait.
#include <malloc.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "rendezvous/store/steady_table.h"
#include "rendezvous/store/store_state.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_cpu.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;

// The keys are deleted in random order, so that the freed blocks of memory are not neighbours. The
// large value and the second SETs are there for that memory. This is the first test, because the
// memory of another one would be collected in this one's time.
TEST_CASE("StoreState: no request of millions takes long") {
  const std::size_t num_keys = test::fewer_if_sanitized(1'000'000UL, 100'000UL);
  std::vector<std::size_t> numbers(num_keys);
  std::iota(numbers.begin(), numbers.end(), 0);
  StoreState state;
  double longest = 0;
  const double start = test::thread_cpu_seconds();
  double before = start;
  const auto step = [&](Opcode opcode, std::string_view key, std::string_view value = {}) {
    state.step(1, request_of(opcode, key, value));
    const double now = test::thread_cpu_seconds();
    longest = std::max(longest, now - before);
    before = now;
  };
  for (const std::size_t number : numbers) step(Opcode::kSet, std::to_string(number));
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  before = test::thread_cpu_seconds();
  for (const std::size_t number : numbers) step(Opcode::kDeleteKey, std::to_string(number));
  step(Opcode::kSet, "large", std::string(60'000, 'x'));
  for (const std::size_t number : numbers) step(Opcode::kSet, std::to_string(number));
  CHECK(state.num_keys() == num_keys + 1);
  CHECK(longest < 0.005 * (before - start));
}

TEST_CASE("SteadyTable: none of millions of keys takes many steps to add or to erase") {
  const std::size_t num_keys = test::fewer_if_sanitized(3'000'000UL, 300'000UL);
  const std::size_t bytes_before = ::mallinfo2().uordblks;  // 0 under AddressSanitizer
  SteadyTable<int> table;
  std::uint64_t most = 0, before = 0;
  const auto count = [&] {
    most = std::max(most, table.num_steps() - before);
    before = table.num_steps();
  };
  for (std::size_t i = 0; i < num_keys; ++i) {
    table.try_emplace(std::to_string(i));
    count();
  }
  CHECK(table.size() == num_keys);
  CHECK(table.num_steps() > num_keys / 2);
  CHECK(table.num_steps() < 2 * num_keys);
  for (std::size_t i = 0; i < num_keys; ++i) {
    table.erase(table.find(std::to_string(i)));
    count();
  }
  CHECK(table.empty());
  CHECK(table.num_steps() < 4 * num_keys);
  CHECK(most <= 40);
  CHECK(::mallinfo2().uordblks < bytes_before + (std::size_t{1} << 20));  // the buckets are freed
}
