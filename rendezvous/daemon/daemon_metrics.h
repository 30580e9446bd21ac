// SPDX-License-Identifier: Apache-2.0
// The daemon in numbers, for GET /metrics (docs/metrics.md). No series of a job, node or rank: how
// long the page is depends on nothing that is running. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/metrics_text.h"
#include "common/process_metrics.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/fleet_seconds.h"
#include "rendezvous/membership/round_end.h"

namespace ddprun::rendezvous {

// Since this process began, whether it led or stood by.
struct DaemonCounts {
  std::array<std::uint64_t, 3> upgrades{};  // by HttpSession::Peer: those that have proved it
  std::uint64_t store_connections = 0, pages = 0;
  std::uint64_t jobs_succeeded = 0, jobs_failed = 0;
  std::uint64_t rounds = 0;                                               // that began
  std::array<std::uint64_t, membership::kNumRoundEnds> round_ends{};      // by RoundEnd
  metrics::Histogram rendezvous{{0.1, 0.5, 1, 5, 10, 30, 60, 300, 600}};  // of rounds, in seconds
  FleetSeconds seconds;
};

struct DaemonMetrics {
  DaemonStatus status;
  DaemonCounts counts;
  metrics::ProcessUse process;
  std::map<std::string, std::size_t> jobs;  // by phase; empty: it stands by
  std::size_t waiting_nodes = 0;            // for their job's next round
};

std::string metrics_to_text(const DaemonMetrics& all, metrics::Format format);

}  // namespace ddprun::rendezvous
