// SPDX-License-Identifier: Apache-2.0
// The events in order: all of them as one number, so that two runs can be compared, and the last
// ones as lines to read. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ddprun::bench {

class EventLog {
 public:
  // Times are told from then on.
  void begin(Clock::time_point at) { began_ = at; }

  // `what` is a literal; `node` −1: nobody's.
  void note(Clock::time_point at, int node, const char* what, std::uint64_t round = 0);
  // Goes into the digest only.
  void count(Clock::time_point at, int node, std::uint64_t what);

  std::uint64_t digest() const { return digest_; }
  std::uint64_t num_events() const { return num_events_; }
  double seconds(Clock::time_point at) const {
    return std::chrono::duration<double>(at - began_).count();
  }
  // "  12.345678 s  node 17: told to start, round 2", the oldest first.
  std::vector<std::string> last() const;

  static constexpr std::size_t kKept = 40;

 private:
  struct Entry {
    Clock::time_point at{};
    int node = -1;
    const char* what = "";
    std::uint64_t round = 0;
  };
  void mix(std::uint64_t value);

  Clock::time_point began_{};
  std::uint64_t digest_ = 0xCBF29CE484222325ULL;
  std::uint64_t num_events_ = 0;
  std::array<Entry, kKept> entries_{};
  std::size_t num_noted_ = 0;
};

}  // namespace ddprun::bench
