// SPDX-License-Identifier: Apache-2.0
// The numbers of a node's agent for its GET /metrics (docs/metrics.md). Only the node's first
// WorkerUseReader::kMostWorkers ranks have series. The writers are pure.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/hang/process_sampler.h"
#include "agent/hang/rank_sample.h"
#include "agent/monitor/node_monitor.h"
#include "common/clock.h"
#include "common/metrics_text.h"

namespace ddprun::agent {

// Resources used by a worker and all that it started, from /proc and netlink.
struct WorkerUse {
  // The worker's own time counts from its start; that of its children counts from the first look at
  // them. Never goes back.
  std::chrono::microseconds cpu{0};
  // Memory in RAM; a part that several processes share counts in each.
  std::uint64_t resident_bytes = 0;
  std::size_t num_sockets = 0;  // of any kind, each once
  // Connected TCP sockets among these; nullopt: this machine has too many connections to ask for,
  // or the kernel doesn't say.
  std::optional<std::size_t> num_connections;
};

// Waits for nothing. io thread only.
class WorkerUseReader {
 public:
  // If a node has more workers, the rest are not looked at.
  static constexpr std::size_t kMostWorkers = 16;
  // Children and sockets are read from hundreds of files. They are read again after this time, so
  // that a scraper with an interval of 15 s gets new values each time.
  static constexpr std::chrono::seconds kFamilyInterval{14};

  // `pids` are by local rank; 0: none runs. The answer has at most kMostWorkers values; nullopt:
  // the worker doesn't run.
  std::vector<std::optional<WorkerUse>> look(const std::vector<pid_t>& pids, Clock::time_point now);

 private:
  struct Worker {
    explicit Worker(pid_t pid) : process(pid) {}

    ProcessSampler process;
    std::optional<Clock::time_point> family_looked_at;
    WorkerUse last;  // its socket counts are of family_looked_at
  };
  std::vector<std::optional<Worker>> workers_;  // by local rank
};

enum class ExitKind {
  kSuccess,      // it ended with 0, or as it was asked to leave
  kError,        // it ended with another status, or could not be started
  kSignal,       // a signal ended it that nobody here sent
  kOutOfMemory,  // it failed, and the OOM killer explains that, at least perhaps (MemoryKills)
  kStopped,      // it was told to end, and ended in whatever way
};
// The names are in the enum's order.
inline constexpr std::array kExitKindNames = {"success", "error", "signal", "out_of_memory",
                                              "stopped"};

// Counts since this process began.
struct AgentCounts {
  AgentCounts();

  std::array<std::uint64_t, kExitKindNames.size()> exits{};  // of workers, by ExitKind
  std::uint64_t rounds = 0;                                  // that began here
  // The rounds after the first whose workers were started anew, by the reason for which the round
  // before ended.
  std::uint64_t restarts_after_failure = 0, restarts_otherwise = 0;
  metrics::Histogram waits;  // times of waiting for a round, in seconds

  std::uint64_t& of(ExitKind kind) { return exits[static_cast<std::size_t>(kind)]; }
};

struct AgentMetrics {
  std::string job;
  bool connected = false;  // to a rendezvous that has taken this node in
  int node_rank = -1;      // −1: it has had none yet
  std::uint64_t round = 0;
  std::size_t num_running = 0, num_stopping = 0, num_parked = 0;  // workers
  std::optional<std::uint64_t> warm_helper_bytes;                 // in RAM; nullopt: there is none
  AgentCounts counts;
  NodeReading node;
  std::vector<std::optional<WorkerUse>> uses;       // by local rank
  std::vector<std::optional<ProgressWords>> pages;  // by local rank
  // Each worker's framework by local rank, as its observer has reported it; nullopt: not reported.
  std::vector<std::optional<std::string>> frameworks;
  metrics::ProcessUse process;
};

std::string metrics_to_text(const AgentMetrics& all, metrics::Format format);

// Writes a node's readings as families ddprun_node_…. An unknown value has no family. At most
// membership::kMaxReportedGpus GPUs are written.
void write_node(metrics::TextWriter& out, const NodeReading& node);

// A worker that ended.
struct WorkerExit {
  int global_rank = 0;
  int local_rank = 0;
  pid_t pid = 0;  // 0: it could not be started
  ExitKind kind = ExitKind::kSuccess;
  std::optional<int> exit_code = {};  // nullopt: a signal ended it
  int signal_number = 0;              // 0: none did
};

// The progress of a worker that writes its progress page.
struct RankProgress {
  int global_rank = 0;
  ProgressWords words;
  std::string framework = {};  // of its program; empty: not reported
};

}  // namespace ddprun::agent
