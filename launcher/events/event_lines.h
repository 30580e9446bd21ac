// SPDX-License-Identifier: Apache-2.0
// Makes JSON lines of a job's events on this node: those of --events (docs/events.md has the keys),
// and those of --event-log-handler, in torchrun's form. Pure but for EventLog's `write`.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/link/agent_machine.h"
#include "agent/monitor/agent_metrics.h"
#include "common/clock.h"
#include "common/wall_time.h"
#include "launcher/report/job_report.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

// Each call returns whole lines with their "\n", or none.
class EventLines {
 public:
  EventLines(JobFacts facts, Clock::time_point begun) : facts_(std::move(facts)), begun_(begun) {}

  const std::string& host() const { return facts_.host; }

  std::string begin(const Moment& now) const;
  std::string round_began(const membership::StartRound& round, const Moment& now);
  // `pids` is by local rank; 0: the rank has no worker since an earlier round.
  std::string workers_run(const std::vector<pid_t>& pids, const Moment& now) const;
  std::string worker_ended(const agent::WorkerExit& exit, const Moment& now) const;
  // Returns no line if the round never began here, or its end was told already.
  std::string round_over(const membership::agent_action::RoundOver& over, const Moment& now);
  // Returns no line: this node waits from now on until the next round.
  void workers_gone(const Moment& now) { waits_since_ = now.at; }
  // Empty: nothing has changed.
  std::string progressed(const std::vector<agent::RankProgress>& ranks, const Moment& now);
  std::string node_read(const membership::NodeReport& report, const Moment& now) const;
  std::string ended(const membership::JobEnd& verdict, const Moment& now) const;

 private:
  class Line;

  const JobFacts facts_;
  const Clock::time_point begun_;
  std::optional<membership::StartRound> round_;   // the live or last one
  std::optional<Clock::time_point> waits_since_;  // nullopt: since `begun_`
  std::optional<bool> over_in_place_;             // round_'s end as told, in place or not
  std::map<int, agent::RankProgress> said_;       // last told state by global rank, in round_
};

struct EventLogOptions {
  std::string run_id;
  std::string role;
  std::string host;
  std::string rdzv_backend;
  std::string program;  // the executed file: its last part is told
};

class EventLog {
 public:
  // `write` gets whole lines with their "\n".
  EventLog(EventLogOptions options, Clock::time_point begun,
           std::function<void(const std::string&)> write);

  // Writes RENDEZVOUS, with the time since the last event, and ASSIGN_WORKER_RANKS.
  void round_began(const membership::StartRound& round, Clock::time_point now);
  // Writes START of each worker; `pids` is by local rank.
  void workers_run(const std::vector<pid_t>& pids, Clock::time_point now);
  // Writes FAILED, also if the job then goes on with another round.
  void worker_failed(const membership::WorkerFailure& failure, Clock::time_point now);
  // Writes SUCCEEDED of each worker, or TERMINATED of those that had not failed, then the agent's.
  void ended(const membership::JobEnd& verdict, Clock::time_point now);

 private:
  struct Worker;
  int place_of(int local_rank) const;
  void write(const char* state, const Worker* worker, const std::string& raw_error,
             std::optional<double> duration_ms);

  const EventLogOptions options_;
  const Clock::time_point begun_;
  const std::function<void(const std::string&)> write_;
  Clock::time_point last_;  // when the last event was
  Clock::time_point now_;
  bool is_placed_ = false;  // round_ is set
  membership::StartRound round_;
  std::vector<pid_t> pids_;  // of the round's workers, by local rank; empty: they don't run yet
  std::set<int> failed_;     // local ranks of workers that failed in it
};

}  // namespace ddprun::launcher
