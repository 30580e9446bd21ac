// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "common/wall_time.h"
#include "launcher/own_error_file.h"
#include "launcher/report/out_of_memory.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::launcher {
namespace {

namespace json = boost::json;

constexpr int kReportVersion =
    1;  // of the keys: grows when one is taken away or changes its meaning
constexpr std::size_t kMostRounds = 100;
constexpr std::size_t kMostArguments = 1'000;

// Valid UTF-8 of a bounded length, whatever a program's arguments or another node's words are.
json::value text_value(const std::string& text) {
  return json::value(membership::clean_utf8(text, membership::kMaxShownBytes));
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : text_value(text);
}

json::array texts_of(const std::vector<std::string>& texts, std::size_t most) {
  json::array array;
  for (const std::string& text : texts) {
    if (array.size() < most) array.push_back(text_value(text));
  }
  return array;
}

double seconds_of(Clock::duration time) {
  return std::chrono::duration<double>(std::chrono::round<std::chrono::milliseconds>(time)).count();
}

json::object failure_of(const membership::WorkerFailure& failure) {
  const bool by_signal = failure.signal_number != 0;
  const bool has_code = !by_signal && !failure.hung;
  json::object out;
  out["host"] = text_value(failure.host);
  out["node_rank"] = failure.node_rank;
  out["global_rank"] = failure.global_rank;
  out["local_rank"] = failure.local_rank;
  out["pid"] = failure.pid > 0 ? json::value(failure.pid) : json::value(nullptr);
  out["exit_code"] = has_code ? json::value(failure.exit_code) : json::value(nullptr);
  out["signal"] = by_signal ? json::value(failure.signal_number) : json::value(nullptr);
  out["signal_name"] =
      by_signal ? json::value(signal_name(failure.signal_number)) : json::value(nullptr);
  out["hung"] = failure.hung;
  out["out_of_memory"] = text_or_null(out_of_memory(failure));
  const auto bytes = [](std::uint64_t number) {
    return number > 0 ? json::value(number) : json::value(nullptr);
  };
  out["memory_peak_bytes"] = bytes(failure.memory_peak_bytes);
  out["memory_limit_bytes"] = bytes(failure.memory_limit_bytes);
  out["note"] = text_or_null(failure.note);
  out["operation"] = text_or_null(failure.operation);
  out["flight_recorder"] = text_or_null(failure.flight_recorder);
  out["ended_at"] = text_or_null(
      failure.ended_at > 0 ? utc_text(WallTime(std::chrono::seconds(failure.ended_at))) : "");
  const std::size_t all = failure.last_lines.size();
  out["last_lines"] = texts_of(failure.hung ? std::vector<std::string>() : failure.last_lines, all);
  out["stack"] = texts_of(failure.hung ? failure.last_lines : std::vector<std::string>(), all);
  out["traceback"] = texts_of(failure.traceback, failure.traceback.size());
  out["error_file"] = text_or_null(failure.error_file);
  out["error_fields"] = further_fields(failure);
  out["log_files"] = texts_of(failure.log_files, failure.log_files.size());
  return out;
}

}  // namespace

const char* state_of(const membership::JobEnd& verdict) {
  if (verdict.exit_code == 0) return "succeeded";
  if (verdict.first_failure) return "worker_failed";
  switch (static_cast<ExitCode>(verdict.exit_code)) {
    case ExitCode::kRetryable:
      return "retryable";
    case ExitCode::kNoProgress:
      return "no_progress";
    case ExitCode::kTimeLimit:
      return "time_limit";
    default:
      return verdict.exit_code > exit_status_for_signal(0) ? "stopped_by_signal" : "failed";
  }
}

JobReport::JobReport(JobReportOptions options, Clock::time_point begun, WallTime begun_wall)
    : options_(std::move(options)), begun_(begun), begun_wall_(begun_wall) {}

void JobReport::round_began(const membership::StartRound& round, Clock::time_point now) {
  if (!rounds_.empty() && !rounds_.back().ended) rounds_.back().ended = now;
  rounds_.push_back({round, now});
  if (rounds_.size() > kMostRounds) rounds_.pop_front();
}

void JobReport::workers_run(Clock::time_point now) {
  if (!rounds_.empty()) rounds_.back().ran = now;
}

std::string JobReport::utc(Clock::time_point at) const {
  return utc_text(begun_wall_ + std::chrono::duration_cast<WallTime::duration>(at - begun_));
}

std::string JobReport::text(const membership::JobEnd& verdict, bool local, int node_rank,
                            Clock::time_point now,
                            const std::vector<std::string>& flight_recorders) const {
  json::object out;
  out["version"] = kReportVersion;
  out["state"] = state_of(verdict);
  out["exit_code"] = verdict.exit_code;
  out["reason"] = text_or_null(verdict.reason);
  json::object job;
  job["id"] = text_value(options_.job_id);
  job["program"] = text_value(options_.program);
  job["arguments"] = texts_of(options_.arguments, kMostArguments);
  job["min_nodes"] = options_.min_nodes;
  job["max_nodes"] = options_.max_nodes;
  job["max_restarts"] = options_.max_restarts;
  out["job"] = std::move(job);
  out["began_at"] = utc(begun_);
  out["ended_at"] = utc(now);
  out["seconds"] = seconds_of(now - begun_);
  out["rounds"] = verdict.rounds;
  out["restarts"] = verdict.rounds > 0 ? verdict.rounds - 1 : 0;
  out["summary"] = text_or_null(verdict.summary);
  const auto& failure = verdict.first_failure;
  out["first_failure"] = failure ? json::value(failure_of(*failure)) : json::value(nullptr);
  out["victims"] = texts_of(verdict.victims, verdict.victims.size());
  out["excluded"] = texts_of(verdict.excluded, verdict.excluded.size());

  json::array rounds;
  for (const Round& round : rounds_) {
    const Clock::time_point ended = round.ended.value_or(now);
    json::object one;
    one["round"] = round.start.round;
    one["restart_count"] = round.start.restart_count;
    one["node_rank"] = round.start.node_rank;
    one["num_nodes"] = round.start.num_nodes;
    one["first_global_rank"] = round.start.first_global_rank;
    one["world_size"] = round.start.world_size;
    one["in_place"] = round.start.in_place;
    one["began_at"] = utc(round.began);
    one["start_seconds"] =
        round.ran ? json::value(seconds_of(*round.ran - round.began)) : json::value(nullptr);
    one["run_seconds"] = round.ran ? seconds_of(ended - *round.ran) : 0.0;
    rounds.push_back(std::move(one));
  }
  json::object here;
  here["host"] = text_value(options_.host);
  here["node_rank"] = node_rank >= 0 ? json::value(node_rank) : json::value(nullptr);
  here["pid"] = options_.pid;
  here["num_workers"] = options_.num_workers;
  here["decided_by"] = local ? "this node" : "rendezvous";
  here["rounds"] = std::move(rounds);
  here["flight_recorders"] = texts_of(flight_recorders, flight_recorders.size());
  out["written_by"] = std::move(here);
  return json::serialize(out) + "\n";
}

}  // namespace ddprun::launcher
