// SPDX-License-Identifier: Apache-2.0
#include "launcher/events/event_lines.h"

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cmath>
#include <iterator>

#include "common/json.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::launcher {
namespace {

namespace json = boost::json;

// Makes valid UTF-8 on one line and of bounded length, even from another node's text.
json::value line_of(const std::string& text) {
  return json::value(membership::clean_utf8(one_line(text), membership::kMaxShownBytes));
}

// Adds the mean times of the steps between `before` and `now`. Checks them, since a worker may
// report wrong values.
void put_step_times(json::object& out, const StepSums& before, const StepSums& now) {
  const bool is_known = now.num_steps > before.num_steps;
  const auto put = [&](const char* name, std::uint64_t StepSums::*sum) {
    json::value mean(nullptr);
    if (is_known && now.*sum >= before.*sum) {
      const auto num_steps = static_cast<double>(now.num_steps - before.num_steps);
      mean = static_cast<double>(now.*sum - before.*sum) / 1e9 / num_steps;
    }
    out[name] = std::move(mean);
  };
  put("step_seconds", &StepSums::step);
  put("communication_seconds", &StepSums::communication);
  put("exposed_seconds", &StepSums::exposed);
  put("loader_seconds", &StepSums::loader);
}

json::object rank_object(const agent::RankProgress& said, const agent::RankProgress& rank) {
  const agent::ProgressWords &before = said.words, &now = rank.words;
  const bool has_told = now.num_reports > 0;
  const auto loss = std::bit_cast<double>(now.loss_bits);
  json::object out;
  out["rank"] = rank.global_rank;
  if (rank.framework != said.framework) out["framework"] = line_of(rank.framework);
  out["step"] = now.step;
  out["loss"] = has_told && std::isfinite(loss) ? json::value(loss) : json::value(nullptr);
  out["samples"] = now.samples > 0 ? json::value(now.samples) : json::value(nullptr);
  if (now.gpu_peak_bytes > 0) out["gpu_memory_peak_bytes"] = now.gpu_peak_bytes;
  if (now.skipped_steps > 0) out["skipped_steps"] = now.skipped_steps;
  const StepSums nothing_new = before.steps.value_or(StepSums());
  put_step_times(out, nothing_new, now.steps.value_or(nothing_new));
  return out;
}

// Whether a line would show something new. A new phase or collective alone doesn't count.
bool differs(const agent::ProgressWords& before, const agent::ProgressWords& now) {
  const auto num_timed = [](const agent::ProgressWords& words) {
    return words.steps ? words.steps->num_steps : 0;
  };
  return now.step != before.step || now.num_reports != before.num_reports ||
         now.skipped_steps != before.skipped_steps || num_timed(now) > num_timed(before);
}

// Parses the ledger that the rendezvous sent; null: the text isn't one.
json::value ledger_of(const std::string& text) {
  if (text.empty() || text.size() > membership::kMaxLedgerBytes) return nullptr;
  auto ledger = parse_object(text);
  return ledger ? json::value(std::move(*ledger)) : json::value(nullptr);
}

double milliseconds_of(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

json::array one(json::value value) { return json::array{std::move(value)}; }

}  // namespace

// One line: keys that all events have, then the event's own.
class EventLines::Line {
 public:
  Line(const char* event, const EventLines& lines, const Moment& now) {
    const auto& round = lines.round_;
    object_["event"] = event;
    object_["time"] = utc_text_ms(now.wall);
    object_["seconds"] = seconds_in_thousandths(now.at - lines.begun_);
    object_["job"] = line_of(lines.facts_.job_id);
    object_["host"] = line_of(lines.facts_.host);
    object_["node_rank"] = round ? json::value(round->node_rank) : json::value(nullptr);
    object_["round"] = round ? round->round : 0;
  }
  Line& put(const char* name, json::value value) {
    object_[name] = std::move(value);
    return *this;
  }
  Line& put_all(const json::object& others) {
    for (const auto& [name, value] : others) object_[name] = value;
    return *this;
  }
  std::string text() const { return written_json(object_) + "\n"; }

 private:
  json::object object_;
};

std::string EventLines::begin(const Moment& now) const {
  return Line("begin", *this, now)
      .put("version", line_of(facts_.version))
      .put("pid", facts_.pid)
      .put("program", line_of(facts_.program))
      .put("num_workers", facts_.num_workers)
      .put("min_nodes", facts_.min_nodes)
      .put("max_nodes", facts_.max_nodes)
      .put("max_restarts", facts_.max_restarts)
      .text();
}

std::string EventLines::round_began(const membership::StartRound& round, const Moment& now) {
  round_ = round;
  over_in_place_.reset();
  said_.clear();
  return Line("round", *this, now)
      .put("restart_count", round.restart_count)
      .put("num_nodes", round.num_nodes)
      .put("world_size", round.world_size)
      .put("first_global_rank", round.first_global_rank)
      .put("in_place", round.in_place)
      .put("waited_seconds", seconds_in_thousandths(now.at - waits_since_.value_or(begun_)))
      .text();
}

std::string EventLines::workers_run(const std::vector<pid_t>& pids, const Moment& now) const {
  if (!round_ || round_->in_place) return {};
  std::string text;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    const int local_rank = static_cast<int>(i);
    text += Line("spawn", *this, now)
                .put("global_rank", round_->first_global_rank + local_rank)
                .put("local_rank", local_rank)
                .put("pid", pids[i])
                .text();
  }
  return text;
}

std::string EventLines::worker_ended(const agent::WorkerExit& exit, const Moment& now) const {
  json::value code(nullptr), signal(nullptr), pid(nullptr);
  if (exit.exit_code) code = *exit.exit_code;
  if (exit.signal_number != 0) signal = line_of(signal_name(exit.signal_number));
  if (exit.pid > 0) pid = exit.pid;
  return Line("exit", *this, now)
      .put("global_rank", exit.global_rank)
      .put("local_rank", exit.local_rank)
      .put("pid", std::move(pid))
      .put("kind", agent::kExitKindNames.at(static_cast<std::size_t>(exit.kind)))
      .put("exit_code", std::move(code))
      .put("signal", std::move(signal))
      .text();
}

std::string EventLines::round_over(const membership::agent_action::RoundOver& over,
                                   const Moment& now) {
  if (!round_ || over.round != round_->round) return {};
  if (over_in_place_ && (!*over_in_place_ || over.in_place)) return {};
  over_in_place_ = over.in_place;
  return Line("restart", *this, now)
      .put("cause", line_of(over.cause))
      .put("in_place", over.in_place)
      .text();
}

std::string EventLines::progressed(const std::vector<agent::RankProgress>& ranks,
                                   const Moment& now) {
  json::array shown;
  bool is_news = false;
  for (const agent::RankProgress& rank : ranks) {
    const agent::RankProgress& before = said_[rank.global_rank];
    is_news |= differs(before.words, rank.words);
    shown.push_back(rank_object(before, rank));
  }
  if (!is_news) return {};
  for (const agent::RankProgress& rank : ranks) {
    agent::RankProgress& said = said_[rank.global_rank];
    const auto steps = rank.words.steps ? rank.words.steps : said.words.steps;
    said = rank;
    said.words.steps = steps;
  }
  return Line("progress", *this, now).put("ranks", std::move(shown)).text();
}

std::string EventLines::node_read(const membership::NodeReport& report, const Moment& now) const {
  return Line("node", *this, now).put_all(membership::shown_node_report(report)).text();
}

std::string EventLines::ended(const membership::JobEnd& verdict, const Moment& now) const {
  const auto& failure = verdict.first_failure;
  return Line("verdict", *this, now)
      .put("state", state_of(verdict))
      .put("exit_code", verdict.exit_code)
      .put("reason", verdict.reason.empty() ? json::value(nullptr) : line_of(verdict.reason))
      .put("first_failure", failure ? line_of(membership::describe(*failure)) : nullptr)
      .put("rounds", verdict.rounds)
      .put("ledger", ledger_of(verdict.ledger))
      .text();
}

struct EventLog::Worker {
  int local_rank = 0;
  pid_t pid = 0;
  std::optional<int> exit_code = {};  // as from waitid: −15 for SIGTERM
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
  round_.restart_count = round.restart_count;  // as in torchrun: with its old place
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
    if (pids[i] == 0) continue;  // no worker since an earlier round
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
  write("FAILED", &worker, written_json(error), std::nullopt);
}

void EventLog::ended(const membership::JobEnd& verdict, Clock::time_point now) {
  const auto& failure = verdict.first_failure;
  // A hung worker did not end by itself, so its failure is written here.
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

// Returns the worker's index among the node's workers in the round.
int EventLog::place_of(int local_rank) const {
  if (!round_.in_place) return local_rank;  // here a pid of 0 is a failed worker
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
  metadata["metadata"] = written_json(inner);
  metadata["agent_restarts"] = round_.restart_count;
  metadata["duration_ms"] = duration_ms ? json::value(*duration_ms) : none;
  json::object event;
  event["name"] = "torchelastic.worker.status." + std::string(state);
  event["source"] = worker ? "WORKER" : "AGENT";
  event["timestamp"] = 0;
  event["metadata"] = std::move(metadata);
  write_(written_json(event) + "\n");
}

}  // namespace ddprun::launcher
