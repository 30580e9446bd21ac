// SPDX-License-Identifier: Apache-2.0
// What each worker of this node uses, with all that it started, from /proc and netlink. Waits for
// nothing. io thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/hang/process_sampler.h"
#include "common/clock.h"

namespace ddprun::agent {

struct WorkerUse {
  // Of its own since it began; of what it started since it was first looked at. Never goes back.
  std::chrono::microseconds cpu{0};
  // That is in RAM; what several processes share counts in each.
  std::uint64_t resident_bytes = 0;
  std::size_t num_sockets = 0;  // of any kind, each once
  // Of these the connected TCP ones; nullopt: there are too many on this machine to ask, or the
  // kernel doesn't say.
  std::optional<std::size_t> num_connections;
};

class WorkerUseReader {
 public:
  // Of a node with more of them the others are not looked at.
  static constexpr std::size_t kMostWorkers = 16;
  // What a worker started, and sockets, are in hundreds of files: looked at anew this long after
  // the last time, so that who asks every 15 s has them anew each time.
  static constexpr std::chrono::seconds kFamilyInterval{14};

  // `pids`: by local rank; 0: none runs. The answer has at most kMostWorkers; nullopt: it doesn't
  // run.
  std::vector<std::optional<WorkerUse>> look(const std::vector<pid_t>& pids, Clock::time_point now);

 private:
  struct Worker {
    explicit Worker(pid_t pid) : process(pid) {}

    ProcessSampler process;
    std::optional<Clock::time_point> family_looked_at;
    WorkerUse last;  // its sockets are those of then
  };
  std::vector<std::optional<Worker>> workers_;  // by local rank
};

}  // namespace ddprun::agent
