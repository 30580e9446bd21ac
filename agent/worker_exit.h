// SPDX-License-Identifier: Apache-2.0
// What a node's agent tells of single workers. Plain data.
#pragma once

#include <sys/types.h>

#include <optional>

#include "agent/hang/rank_sample.h"
#include "agent/monitor/agent_metrics.h"

namespace ddprun::agent {

// A worker that ended.
struct WorkerExit {
  int global_rank = 0;
  int local_rank = 0;
  pid_t pid = 0;  // 0: it could not be started
  ExitKind kind = ExitKind::kSuccess;
  std::optional<int> exit_code = {};  // nullopt: a signal ended it
  int signal_number = 0;              // 0: none did
};

// How far a worker is that writes its progress page.
struct RankProgress {
  int global_rank = 0;
  ProgressWords words;
};

}  // namespace ddprun::agent
