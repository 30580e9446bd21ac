// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/job_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <utility>

#include "rendezvous/membership/ledger.h"
#include "rendezvous/messages/job_settings.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::rendezvous {

namespace json = boost::json;

namespace {

json::object spread_object(const membership::RankSpread& spread) {
  return {{"mean", spread.mean}, {"worst", spread.worst}, {"worst_rank", spread.worst_rank}};
}

json::value step_parts_value(const membership::StepSummary& steps) {
  if (steps.num_ranks == 0) return nullptr;
  json::value overlap;
  if (steps.least_overlap_rank >= 0) {
    overlap = spread_object({steps.overlap(), steps.least_overlap, steps.least_overlap_rank});
  }
  return json::object{{"ranks", steps.num_ranks},
                      {"step_seconds", spread_object(steps.step)},
                      {"forward_seconds", spread_object(steps.forward)},
                      {"backward_seconds", spread_object(steps.backward)},
                      {"communication_seconds", spread_object(steps.communication)},
                      {"exposed_seconds", spread_object(steps.exposed)},
                      {"loader_seconds", spread_object(steps.loader)},
                      {"overlap", std::move(overlap)},
                      {"bytes_per_step", steps.bytes_per_step}};
}

json::object training_object(const membership::TrainingStatus& status) {
  json::value loss, samples_per_second;
  if (status.num_ranks > 0) loss = status.loss;
  json::value gpu_peak;
  if (status.gpu_peak_bytes > 0) {
    gpu_peak = json::object{{"bytes", status.gpu_peak_bytes}, {"rank", status.gpu_peak_rank}};
  }
  const bool has_loss = status.num_ranks > 0 || status.num_nan > 0;
  // An agent of an older version has samples only with a loss, and doesn't say that it has none.
  if (status.has_samples && (has_loss || status.samples_per_second > 0)) {
    samples_per_second = status.samples_per_second;
  }
  return {{"phase", status.phase},
          {"step", status.step},
          {"loss", loss},
          {"nan_ranks", status.num_nan},
          {"samples_per_second", samples_per_second},
          {"skipped_steps", status.skipped_steps},
          {"gpu_memory_peak", std::move(gpu_peak)},
          {"step_parts", step_parts_value(status.steps)},
          {"framework", status.framework.empty() ? json::value() : json::value(status.framework)}};
}

json::object monitor_object(const membership::SeenNodeReport& seen, const Moment& now) {
  json::object object = membership::shown_node_report(seen.report);
  object["age_seconds"] = std::max(std::chrono::duration<double>(now.at - seen.at).count(), 0.0);
  return object;
}

json::object hang_object(const membership::HangStatus& hang) {
  return {{"round", hang.round},
          {"text", hang.text},
          {"lines", json::array(hang.lines.begin(), hang.lines.end())},
          {"acted", hang.acted}};
}

// Makes short rows instead of objects, since there is one for each rank.
json::array step_times_array(const std::vector<membership::RankStepTime>& times) {
  json::array rows;
  rows.reserve(times.size());
  for (const membership::RankStepTime& time : times) {
    rows.push_back(json::array{time.global_rank, time.step.count(), time.own.count()});
  }
  return rows;
}

json::value moment_value(const std::optional<Clock::time_point>& at, const Moment& now) {
  if (!at) return nullptr;
  const std::string text =
      utc_text(now.wall - std::chrono::duration_cast<WallTime::duration>(now.at - *at));
  return json::value(text);
}

}  // namespace

std::optional<double> shown_ettr(const membership::JobStatus& job, const Moment& now) {
  const auto ettr = job.ettr_at(now.at);
  return ettr ? std::optional(static_cast<int>(*ettr * 1000 + 0.5) / 1000.0) : std::nullopt;
}

json::object job_object(const membership::JobStatus& job, const Moment& now) {
  json::object entry;
  entry["run_id"] = job.run_id;
  entry["phase"] = job.phase;
  entry["round"] = job.round;
  for (auto& [name, value] : membership::to_object(job.settings)) entry[name] = std::move(value);
  entry["failures"] = job.failures;
  entry["node_losses"] = job.node_losses;
  entry["preemptions"] = job.preemptions;
  if (!job.preempting.empty()) entry["preempting"] = job.preempting;
  entry["rounds_without_progress"] = job.idle_rounds;
  json::object excluded;
  for (const auto& [node, why] : job.excluded) excluded[node] = why;
  entry["excluded"] = std::move(excluded);
  if (job.verdict) {
    entry["exit_code"] = job.verdict->exit_code;
    entry["reason"] = job.verdict->reason;
  }
  json::array rounds;
  for (const membership::RoundRecord& record : job.rounds)
    rounds.push_back(membership::round_record_object(record));
  entry["rounds"] = std::move(rounds);
  const auto lasting = job.lasting_at(now.at);
  entry["seconds"] = membership::phase_seconds_object(lasting.before);
  for (const auto& [name, phase] : membership::kPhases) {
    if (phase != lasting.phase) continue;
    const std::chrono::duration<double> lasted = now.at - lasting.since;
    entry["lasting"] = json::object{{"phase", name}, {"seconds", std::max(lasted.count(), 0.0)}};
  }
  if (const auto ettr = shown_ettr(job, now)) entry["ettr"] = *ettr;
  if (job.training) entry["training"] = training_object(*job.training);
  if (job.hang) entry["hang"] = hang_object(*job.hang);
  entry["stragglers"] = json::array(job.stragglers.begin(), job.stragglers.end());
  return entry;
}

json::object node_object(const membership::NodeStatus& node, const Moment& now) {
  json::object entry;
  entry["host"] = node.host;
  entry["addr"] = node.addr;
  entry["phase"] = node.phase;
  if (node.node_rank) entry["node_rank"] = *node.node_rank;
  entry["num_workers"] = node.num_workers;
  entry["connected"] = node.connected;
  if (node.monitor) entry["monitor"] = monitor_object(*node.monitor, now);
  if (!node.step_times.empty()) entry["step_times"] = step_times_array(node.step_times);
  return entry;
}

json::object finished_object(const membership::FinishedJob& job, const Moment& now) {
  return {{"run_id", job.run_id},
          {"phase", "ended"},
          {"exit_code", job.exit_code},
          {"reason", job.reason},
          {"first_failure", job.first_failure},
          {"summary", job.summary},
          {"began", moment_value(job.began, now)},
          {"ended", moment_value(job.ended, now)},
          {"rounds", job.rounds},
          {"restarts", job.rounds > 0 ? job.rounds - 1 : 0},
          {"failures", job.failures},
          {"node_losses", job.node_losses},
          {"preemptions", job.preemptions},
          {"num_nodes", job.num_nodes},
          {"nodes", json::array(job.nodes.begin(), job.nodes.end())}};
}

json::object keeping_object(const KeepingStatus& keeping) {
  json::object object;
  object["kept"] = keeping.trouble.empty();
  if (!keeping.trouble.empty()) {
    object["trouble"] = keeping.trouble;
    object["trouble_seconds"] = std::chrono::duration<double>(keeping.in_trouble).count();
    object["jobs_wait"] = keeping.is_shared;
  }
  return object;
}

}  // namespace ddprun::rendezvous
