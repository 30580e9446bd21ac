// SPDX-License-Identifier: Apache-2.0
// The numbers of a standing agent for its GET /metrics (docs/metrics.md). It has no series of a
// gang or a rank: those come from each gang's own ddprun. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/monitor/node_monitor.h"
#include "common/metrics_text.h"

namespace ddprun::launcher {

enum class GangEnd {
  kSuccess,  // its ddprun ended with 0
  kFailure,  // it ended with another status, or by a signal that nobody here sent
  kStopped,  // it was told to end, and ended in whatever way
  kRefused,  // there never was a ddprun: no such directory, or this agent is being stopped
};
inline constexpr std::size_t kNumGangEnds = 4;

// Counts since this process began.
struct GangCounts {
  std::uint64_t begun = 0;                         // number of executed ddpruns
  std::array<std::uint64_t, kNumGangEnds> ends{};  // by GangEnd

  std::uint64_t& of(GangEnd how) { return ends[static_cast<std::size_t>(how)]; }
};

struct StandingMetrics {
  std::string node, user;
  bool connected = false;        // to a rendezvous that has welcomed it
  std::uint64_t reconnects = 0;  // connections after the first one
  int slots = 0, slots_used = 0;
  std::size_t num_starting = 0, num_running = 0, num_stopping = 0;  // gangs
  GangCounts counts;
  agent::NodeReading readings;
  metrics::ProcessUse process;
};

std::string standing_metrics_to_text(const StandingMetrics& all, metrics::Format format);

}  // namespace ddprun::launcher
