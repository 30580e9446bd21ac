// SPDX-License-Identifier: Apache-2.0
// A store that is filled with small keys, `store_growth KEYS`: SETs KEYS keys, DELETEs them in
// random order, SETs a large value, SETs the keys again and ends the store. Prints one JSON line:
// the longest request of each kind, in CPU time.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/store/bench_client.h"
#include "common/process_facts.h"
#include "rendezvous/store/store_state.h"

using namespace ddprun;
using namespace ddprun::bench;
using namespace ddprun::store;

namespace {

double cpu_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

struct Times {
  double longest_ms = 0, all_ms = 0;
};

Times carry_out(StoreState& state, Opcode opcode, const std::vector<std::uint32_t>& numbers) {
  Times times;
  const double start = cpu_milliseconds();
  double before = start;
  Request request{.opcode = opcode};
  for (const std::uint32_t number : numbers) {
    const std::string key = "/key" + std::to_string(number);
    request.key = key;
    state.step(1, request);
    const double now = cpu_milliseconds();
    times.longest_ms = std::max(times.longest_ms, now - before);
    before = now;
  }
  times.all_ms = before - start;
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) die("usage: store_growth KEYS");
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(std::atol(argv[1])));
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto num_keys = static_cast<double>(numbers.size());
  auto state = std::make_unique<StoreState>();
  const std::size_t empty = resident_bytes(::getpid()).value_or(0);
  const Times set = carry_out(*state, Opcode::kSet, numbers);
  const std::size_t full = resident_bytes(::getpid()).value_or(0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  const std::string large(60'000, 'x');
  const Request set_large{.opcode = Opcode::kSet, .key = "/large", .value = large};
  const Times erase = carry_out(*state, Opcode::kDeleteKey, numbers);
  double before = cpu_milliseconds();
  state->step(1, set_large);
  const double large_ms = cpu_milliseconds() - before;
  const Times again = carry_out(*state, Opcode::kSet, numbers);
  before = cpu_milliseconds();
  state.reset();
  const double end_ms = cpu_milliseconds() - before;
  std::printf(
      "{\"keys\": %.0f, \"bytes_per_key\": %.1f, \"set_max_ms\": %.3f, \"set_ns\": %.0f, "
      "\"delete_max_ms\": %.3f, \"delete_ns\": %.0f, \"large_ms\": %.3f, "
      "\"again_max_ms\": %.3f, \"again_ns\": %.0f, \"end_ms\": %.3f}\n",
      num_keys, static_cast<double>(full - empty) / num_keys, set.longest_ms,
      1e6 * set.all_ms / num_keys, erase.longest_ms, 1e6 * erase.all_ms / num_keys, large_ms,
      again.longest_ms, 1e6 * again.all_ms / num_keys, end_ms);
  return 0;
}
