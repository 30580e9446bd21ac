// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/record_keeper.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "worker_sdk/core/flight_dump.h"

namespace ddprun {

RecordKeeper::RecordKeeper(const WorkerEnv& env, WorkerProgress& progress)
    : env_(env), progress_(progress), file_(flight_recorder_file(env)) {
  progress_.on_operation_failed([this](const OperationFailure& failure) { failed(failure); });
}

RecordKeeper::~RecordKeeper() {
  progress_.on_operation_failed(nullptr);
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void RecordKeeper::serve(const std::shared_ptr<AgentChannel>& agent) {
  {
    const std::lock_guard lock(mutex_);
    agent_ = agent;
  }
  if (file_.empty()) return;
  try {
    stop_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!stop_) throw_system_error("eventfd", errno);
    thread_ = start_quiet_thread("ddprun-record", [this, agent] { wait_for_requests(*agent); });
    agent->keeps_record();
  } catch (const Error& error) {
    log_warning("rank ", env_.rank,
                ": the agent can't ask for the flight recorder: ", error.what());
  }
}

// Whatever thread found it. The agent first: the file may take a while.
void RecordKeeper::failed(const OperationFailure& failure) {
  std::shared_ptr<AgentChannel> agent;
  {
    const std::lock_guard lock(mutex_);
    agent = agent_;
  }
  if (agent) agent->operation_failed(failure, file_);
  if (file_.empty()) return;
  const std::lock_guard lock(file_mutex_);
  has_failure_ = true;
  is_written_ =
      write_flight_recorder(file_, flight_recorder_json(progress_.recorder(), env_, &failure));
  if (agent) agent->recorded(is_written_ ? file_ : "", 0);
}

void RecordKeeper::wait_for_requests(AgentChannel& agent) {
  while (const auto request = agent.await_request(stop_.get())) {
    const std::lock_guard lock(file_mutex_);
    if (!has_failure_) {
      is_written_ =
          write_flight_recorder(file_, flight_recorder_json(progress_.recorder(), env_, nullptr));
    }
    agent.recorded(is_written_ ? file_ : "", *request);
  }
}

}  // namespace ddprun
