// SPDX-License-Identifier: Apache-2.0
// Writes this process' flight recorder to its file: when an operation fails, and when the agent
// asks (docs/flight-recorder.md). Owned by Session.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "worker_sdk/core/agent_channel.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

class RecordKeeper {
 public:
  // `progress` outlives this; from now on its failures are told here.
  RecordKeeper(const WorkerEnv& env, WorkerProgress& progress);
  // Ends the thread; waits for files that are being written, 2 s for each: the one that was asked
  // for and, after it, that of a failure, 4 s in all; 2 s more for each further communicator that
  // failed meanwhile.
  ~RecordKeeper();
  RecordKeeper(const RecordKeeper&) = delete;
  RecordKeeper& operator=(const RecordKeeper&) = delete;

  // Failures are said to the agent from now on, and it may ask: a thread waits for that. Once.
  // Where there is no thread for it, with a warning, it can't ask.
  void serve(const std::shared_ptr<AgentChannel>& agent);

 private:
  void failed(const OperationFailure& failure);
  void wait_for_requests(AgentChannel& agent);

  // Constant after construction.
  const WorkerEnv env_;
  WorkerProgress& progress_;
  const std::string file_;  // empty: none is written

  std::mutex mutex_;
  std::shared_ptr<AgentChannel> agent_;  // guarded by mutex_; second owner: the session

  std::mutex file_mutex_;
  // Guarded by file_mutex_.
  bool has_failure_ = false;  // what is asked for doesn't replace that file
  bool is_written_ = false;   // the last attempt

  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace ddprun
