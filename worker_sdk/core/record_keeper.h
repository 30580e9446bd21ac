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

// Returns the flight recorder's file (docs/flight-recorder.md has the format): beside the error
// file ("…/error.json" → "…/flight_recorder.json"), or "rank_3.json" in the directory that
// DDPRUN_FLIGHT_RECORDER_DIR names. Empty: no file is written.
std::string flight_recorder_file(const WorkerEnv& env);

// Returns one JSON object. `failure` is the reason to write it; null: it was asked for. Times are
// CLOCK_MONOTONIC in the recorder, and since 1970 here; the clocks' present difference converts
// them.
std::string flight_recorder_json(const FlightRecorder& recorder, const WorkerEnv& env,
                                 const OperationFailure* failure);

// Writes `text` beside `path` and renames it; the file is there whole or not at all. Returns false,
// with one warning, if that failed or the file system didn't answer within 2 s.
bool write_flight_recorder(const std::string& path, const std::string& text);

class RecordKeeper {
 public:
  // `progress` outlives this object; it reports its failures to this object from now on.
  RecordKeeper(const WorkerEnv& env, WorkerProgress& progress);
  // Ends the thread. It waits for files that are being written, 2 s for each: the one that was
  // asked for, then a failure's, 4 s in all. It waits 2 s more for each further communicator
  // that failed meanwhile.
  ~RecordKeeper();

  // Reports failures to the agent from now on; a thread waits for the agent's requests. Call it
  // once. If that thread can't be started, there is a warning, and the agent can't ask.
  void serve(const std::shared_ptr<AgentChannel>& agent);

 private:
  void failed(const OperationFailure& failure);
  void wait_for_requests(AgentChannel& agent);

  // Constant after construction.
  const WorkerEnv env_;
  WorkerProgress& progress_;
  const std::string file_;  // empty: none is written

  std::mutex mutex_;
  std::shared_ptr<AgentChannel> agent_;  // guarded by mutex_; shared with the session

  std::mutex file_mutex_;
  // Guarded by file_mutex_.
  bool has_failure_ = false;  // a failure was written; a requested file doesn't replace it
  bool is_written_ = false;   // result of the last attempt

  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace ddprun
