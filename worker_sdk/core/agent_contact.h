// SPDX-License-Identifier: Apache-2.0
// What a worker and its agent tell each other: progress, the flight recorder, requests. Owned by
// Session. The loop's thread.
#pragma once

#include <memory>
#include <string_view>

#include "common/clock.h"
#include "worker_sdk/core/agent_channel.h"
#include "worker_sdk/core/record_keeper.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

class AgentContact {
 public:
  // Training needs no agent that listens: where it refuses, or doesn't answer within 5 s, there is
  // a warning. One that comes to it late is heard of at the beginning of a step. `progress`
  // outlives this object.
  AgentContact(const WorkerEnv& env, WorkerProgress& progress);
  ~AgentContact();
  AgentContact(const AgentContact&) = delete;
  AgentContact& operator=(const AgentContact&) = delete;

  // Session's.
  bool exclude_node(std::string_view reason);
  bool stop_job(std::string_view reason, int exit_code);
  bool offer_recovery();

 private:
  bool join(Deadline deadline);
  bool try_again();

  // Constant after construction.
  const WorkerEnv& env_;
  WorkerProgress& progress_;

  RecordKeeper recorder_;
  // Second owners: the keeper, and the progress, which says when the first step is done. Null: no
  // agent, or none that answered.
  std::shared_ptr<AgentChannel> agent_;
  std::unique_ptr<AgentChannel> greeted_;  // one that hasn't answered yet
  Clock::time_point next_try_{};
};

}  // namespace ddprun
