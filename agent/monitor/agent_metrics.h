// SPDX-License-Identifier: Apache-2.0
// A node's agent in numbers, for its GET /metrics (docs/metrics.md). Series of ranks are those of
// the node's first WorkerUseReader::kMostWorkers alone. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/hang/rank_sample.h"
#include "agent/monitor/node_reading.h"
#include "agent/monitor/worker_use.h"
#include "common/metrics_text.h"
#include "common/process_metrics.h"

namespace ddprun::agent {

enum class ExitKind {
  kSuccess,      // with 0, or as it was asked to leave
  kError,        // with another status, or it could not be started
  kSignal,       // which nobody here sent
  kOutOfMemory,  // likewise, and that is known (memory_kills.h)
  kStopped,      // it was told to, however it ended
};
inline constexpr std::size_t kNumExitKinds = 5;

// Since this process began.
struct AgentCounts {
  AgentCounts();

  std::array<std::uint64_t, kNumExitKinds> exits{};  // of workers, by ExitKind
  std::uint64_t rounds = 0;                          // that began here
  // Of these, those after the first whose workers were started anew: by what ended the one before.
  std::uint64_t restarts_after_failure = 0, restarts_otherwise = 0;
  metrics::Histogram waits;  // for a round, in seconds

  std::uint64_t& of(ExitKind kind) { return exits[static_cast<std::size_t>(kind)]; }
};

struct AgentMetrics {
  std::string job;
  bool connected = false;  // to the rendezvous, which has taken this node in
  int node_rank = -1;      // −1: it has had none yet
  std::uint64_t round = 0;
  std::size_t num_running = 0, num_stopping = 0, num_parked = 0;  // workers
  AgentCounts counts;
  NodeReading node;
  std::vector<std::optional<WorkerUse>> uses;       // by local rank
  std::vector<std::optional<ProgressWords>> pages;  // likewise
  metrics::ProcessUse process;
};

std::string metrics_to_text(const AgentMetrics& all, metrics::Format format);

}  // namespace ddprun::agent
