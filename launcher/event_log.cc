// SPDX-License-Identifier: Apache-2.0
#include "launcher/event_log.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <iterator>
#include <utility>

namespace ddprun::launcher {
namespace {

namespace json = boost::json;

double milliseconds_of(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

json::array one(json::value value) { return json::array{std::move(value)}; }

}  // namespace

struct EventLog::Worker {
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<int> exit_code = {};  // as waitid has it: −15 for SIGTERM
};

EventLog::EventLog(EventLogOptions options, Clock::time_point begun,
                   std::function<void(const std::string&)> write)
    : options_(std::move(options)),
      begun_(begun),
      write_(std::move(write)),
      last_(begun),
      now_(begun) {}

void EventLog::round_began(const membership::StartRound& round, Clock::time_point now) {
  now_ = now;
  round_.restart_count = round.restart_count;  // as torchrun: with the place that it had before
  write("RENDEZVOUS", nullptr, "", milliseconds_of(now - last_));
  write("ASSIGN_WORKER_RANKS", nullptr, "", 0.0);
  round_ = round;
  is_placed_ = true;
  pids_.clear();
  failed_.clear();
  last_ = now;
}

void EventLog::workers_run(const std::vector<pid_t>& pids, Clock::time_point now) {
  now_ = last_ = now;
  pids_ = pids;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;  // its local rank has none since an earlier round
    const Worker worker{static_cast<int>(i), pids[i]};
    if (!failed_.contains(worker.local_rank)) write("START", &worker, "", std::nullopt);
  }
}

void EventLog::worker_failed(const membership::WorkerFailure& failure, Clock::time_point now) {
  if (!failed_.insert(failure.local_rank).second) return;
  now_ = now;
  const int code = failure.signal_number != 0 ? -failure.signal_number : failure.exit_code;
  const Worker worker{failure.local_rank, static_cast<pid_t>(failure.pid), code};
  const Worker started{failure.local_rank, worker.pid};
  if (pids_.empty() && worker.pid > 0) write("START", &started, "", std::nullopt);
  json::object error;
  error["message"] = failure.note.empty() ? "<NONE>" : failure.note;
  write("FAILED", &worker, json::serialize(error), std::nullopt);
}

void EventLog::ended(const membership::JobEnd& verdict, Clock::time_point now) {
  const auto& failure = verdict.first_failure;
  // One that hung did not end by itself.
  const bool is_ours = failure && is_placed_ && failure->node_rank == round_.node_rank;
  if (is_ours && failure->local_rank >= 0) worker_failed(*failure, now);
  now_ = now;
  const char* state = verdict.exit_code == 0 ? "SUCCEEDED" : "TERMINATED";
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (pids_[i] == 0) continue;
    const Worker worker{static_cast<int>(i), pids_[i]};
    if (!failed_.contains(worker.local_rank)) write(state, &worker, "", std::nullopt);
  }
  write(verdict.exit_code == 0 ? "SUCCEEDED" : "FAILED", nullptr, "", std::nullopt);
}

// Among the node's workers of the round.
int EventLog::place_of(int local_rank) const {
  if (!round_.in_place) return local_rank;  // a pid of 0 is then one that has failed already
  const auto end = pids_.begin() + std::min<std::ptrdiff_t>(local_rank, std::ssize(pids_));
  return local_rank - static_cast<int>(std::count(pids_.begin(), end, 0));
}

void EventLog::write(const char* state, const Worker* worker, const std::string& raw_error,
                     std::optional<double> duration_ms) {
  const json::value none;
  const std::string& program = options_.program;
  json::object inner;
  inner["group_world_size"] = is_placed_ ? json::value(round_.num_nodes) : none;
  if (round_.in_place) inner["in_place"] = true;
  inner["entry_point"] = program.substr(program.rfind('/') + 1);
  json::object metadata;
  metadata["run_id"] = options_.run_id;
  metadata["global_rank"] =
      worker ? json::value(round_.first_global_rank + place_of(worker->local_rank)) : none;
  metadata["group_rank"] = is_placed_ ? json::value(round_.node_rank) : none;
  metadata["worker_id"] = worker ? json::value(std::to_string(worker->pid)) : none;
  metadata["role"] = options_.role;
  metadata["hostname"] = options_.host;
  metadata["state"] = state;
  metadata["total_run_time"] =
      std::chrono::duration_cast<std::chrono::seconds>(now_ - begun_).count();
  metadata["rdzv_backend"] = options_.rdzv_backend;
  metadata["raw_error"] = raw_error.empty() ? none : json::value(raw_error);
  if (worker) {
    const bool has_ended = worker->exit_code.has_value();
    inner["local_rank"] = one(worker->local_rank);
    inner["role_rank"] = one(round_.first_role_rank + place_of(worker->local_rank));
    inner["role_world_size"] = one(round_.role_world_size);
    inner["exit_code"] = one(has_ended ? json::value(*worker->exit_code) : none);
    inner["worker_pid"] = one(has_ended ? json::value(worker->pid) : none);
  }
  metadata["metadata"] = json::serialize(inner);
  metadata["agent_restarts"] = round_.restart_count;
  metadata["duration_ms"] = duration_ms ? json::value(*duration_ms) : none;
  json::object event;
  event["name"] = "torchelastic.worker.status." + std::string(state);
  event["source"] = worker ? "WORKER" : "AGENT";
  event["timestamp"] = 0;
  event["metadata"] = std::move(metadata);
  write_(json::serialize(event) + "\n");
}

}  // namespace ddprun::launcher
