// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/event_log.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "common/text.h"

namespace ddprun::bench {

void EventLog::mix(std::uint64_t value) {
  digest_ = (digest_ ^ value) * 0x100000001B3ULL;
  digest_ ^= digest_ >> 29;
}

void EventLog::count(Clock::time_point at, int node, std::uint64_t what) {
  ++num_events_;
  mix(static_cast<std::uint64_t>((at - began_).count()));
  mix((static_cast<std::uint64_t>(node + 1) << 16) ^ what);
}

void EventLog::note(Clock::time_point at, int node, const char* what, std::uint64_t round) {
  std::uint64_t hash = round;
  for (const char each : std::string_view(what)) {
    hash = hash * 31 + static_cast<unsigned char>(each);
  }
  count(at, node, hash);
  entries_[num_noted_++ % kKept] = {at, node, what, round};
}

std::vector<std::string> EventLog::last() const {
  std::vector<std::string> lines;
  for (std::size_t i = num_noted_ - std::min(num_noted_, kKept); i < num_noted_; ++i) {
    const Entry& entry = entries_[i % kKept];
    char when[32];
    std::snprintf(when, sizeof when, "%12.6f s  ", seconds(entry.at));
    std::string line = when;
    if (entry.node >= 0) line += concat("node ", entry.node, ": ");
    line += entry.what;
    if (entry.round > 0) line += concat(", round ", entry.round);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace ddprun::bench
