// SPDX-License-Identifier: Apache-2.0
// --event-log-handler: what becomes of this node's workers, one line of JSON for each event, in
// torchrun's shape ("torchelastic.worker.status.START", …). Pure but for `write`.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

struct EventLogOptions {
  std::string run_id;
  std::string role;
  std::string host;
  std::string rdzv_backend;
  std::string program;  // the file that is executed: its last part is told
  int num_workers = 1;  // of this node
};

class EventLog {
 public:
  // `write` takes whole lines, each with its "\n".
  EventLog(EventLogOptions options, Clock::time_point begun,
           std::function<void(const std::string&)> write);

  // RENDEZVOUS, with the time since the last event, and ASSIGN_WORKER_RANKS.
  void round_began(const membership::StartRound& round, Clock::time_point now);
  // START of each worker; pids by local rank.
  void workers_run(const std::vector<pid_t>& pids, Clock::time_point now);
  // FAILED, also where the job then goes on with another round.
  void worker_failed(const membership::WorkerFailure& failure, Clock::time_point now);
  // SUCCEEDED of each worker, or TERMINATED of those that had not failed; then the agent's.
  void ended(const membership::JobEnd& verdict, Clock::time_point now);

 private:
  struct Worker;
  int place_of(int local_rank) const;
  void write(const char* state, const Worker* worker, const std::string& raw_error,
             std::optional<double> duration_ms);

  const EventLogOptions options_;
  const Clock::time_point begun_;
  const std::function<void(const std::string&)> write_;
  Clock::time_point last_;  // event
  Clock::time_point now_;
  bool is_placed_ = false;  // round_ is one
  membership::StartRound round_;
  std::vector<pid_t> pids_;  // of the round's workers, by local rank; empty: they don't run yet
  std::set<int> failed_;     // of them, by local rank
};

}  // namespace ddprun::launcher
