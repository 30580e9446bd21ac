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
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/worker_env.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

// The flight recorder's file (docs/flight-recorder.md has the format): beside the error file
// ("…/error.json" → "…/flight_recorder.json"), or "rank_3.json" in the directory that
// DDPRUN_FLIGHT_RECORDER_DIR names. Empty: nowhere.
std::string flight_recorder_file(const WorkerEnv& env);

// One JSON object. `failure`: why it is written; null: it was asked for. Times are CLOCK_MONOTONIC
// in the recorder, since 1970 here, by the clocks of now.
std::string flight_recorder_json(const FlightRecorder& recorder, const WorkerEnv& env,
                                 const OperationFailure* failure);

// Writes `text` beside `path` and renames it; the file is there whole or not at all. False, with
// one warning: it could not be, or the file system didn't answer within 2 s.
bool write_flight_recorder(const std::string& path, const std::string& text);

class RecordKeeper {
 public:
  // `progress` outlives this; from now on its failures are told here.
  RecordKeeper(const WorkerEnv& env, WorkerProgress& progress);
  // Ends the thread. It waits for files that are being written, 2 s for each. They are the file
  // that was asked for and, after it, that of a failure, 4 s in all. It waits 2 s more for each
  // further communicator that failed meanwhile.
  ~RecordKeeper();
  RecordKeeper(const RecordKeeper&) = delete;
  RecordKeeper& operator=(const RecordKeeper&) = delete;

  // From now on failures are reported to the agent, and a thread waits for its requests. Call it
  // once. If that thread can't be had, there is a warning, and the agent can't ask.
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
