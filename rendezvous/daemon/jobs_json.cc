// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/jobs_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cmath>
#include <utility>

#include "rendezvous/membership/job_settings.h"
#include "rendezvous/membership/ledger_json.h"
#include "rendezvous/membership/node_report.h"

namespace ddprun::rendezvous {

namespace json = boost::json;

namespace {

json::object spread_object(const membership::RankSpread& spread) {
  json::object object;
  object["mean"] = spread.mean;
  object["worst"] = spread.worst;
  object["worst_rank"] = spread.worst_rank;
  return object;
}

json::value step_parts_value(const membership::StepSummary& steps) {
  if (steps.num_ranks == 0) return nullptr;
  json::object object;
  object["ranks"] = steps.num_ranks;
  object["step_seconds"] = spread_object(steps.step);
  object["forward_seconds"] = spread_object(steps.forward);
  object["backward_seconds"] = spread_object(steps.backward);
  object["communication_seconds"] = spread_object(steps.communication);
  object["exposed_seconds"] = spread_object(steps.exposed);
  object["loader_seconds"] = spread_object(steps.loader);
  object["overlap"] =
      steps.least_overlap_rank < 0
          ? json::value(nullptr)
          : spread_object({steps.overlap(), steps.least_overlap, steps.least_overlap_rank});
  object["bytes_per_step"] = steps.bytes_per_step;
  return object;
}

json::object training_object(const membership::TrainingStatus& status) {
  json::object object;
  object["phase"] = status.phase;
  object["step"] = status.step;
  const bool told = status.num_ranks > 0 || status.num_nan > 0;
  object["loss"] = status.num_ranks > 0 ? json::value(status.loss) : json::value(nullptr);
  object["nan_ranks"] = status.num_nan;
  object["samples_per_second"] =
      told ? json::value(status.samples_per_second) : json::value(nullptr);
  object["step_parts"] = step_parts_value(status.steps);
  return object;
}

json::object monitor_object(const membership::SeenNodeReport& seen, const Moment& now) {
  json::object object = membership::shown_node_report(seen.report);
  object["age_seconds"] = std::max(std::chrono::duration<double>(now.at - seen.at).count(), 0.0);
  return object;
}

json::object hang_object(const membership::HangStatus& hang) {
  json::object object;
  object["round"] = hang.round;
  object["text"] = hang.text;
  object["lines"] = json::array(hang.lines.begin(), hang.lines.end());
  object["acted"] = hang.acted;
  return object;
}

// Rows, not objects: there is one for each rank.
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

json::object finished_object(const membership::FinishedJob& job, const Moment& now) {
  json::object object;
  object["run_id"] = job.run_id;
  object["phase"] = "ended";
  object["exit_code"] = job.exit_code;
  object["reason"] = job.reason;
  object["first_failure"] = job.first_failure;
  object["summary"] = job.summary;
  object["began"] = moment_value(job.began, now);
  object["ended"] = moment_value(job.ended, now);
  object["rounds"] = job.rounds;
  object["restarts"] = job.rounds > 0 ? job.rounds - 1 : 0;
  object["failures"] = job.failures;
  object["node_losses"] = job.node_losses;
  object["preemptions"] = job.preemptions;
  object["num_nodes"] = job.num_nodes;
  object["nodes"] = json::array(job.nodes.begin(), job.nodes.end());
  return object;
}

}  // namespace

json::object keeping_object(const KeepingStatus& keeping) {
  json::object object;
  object["kept"] = keeping.trouble.empty();
  if (!keeping.trouble.empty()) {
    object["trouble"] = keeping.trouble;
    object["trouble_seconds"] = static_cast<double>(keeping.in_trouble.count()) / 1000;
  }
  return object;
}

std::string jobs_to_json(const std::vector<membership::JobStatus>& jobs,
                         const std::vector<membership::FinishedJob>& finished,
                         const std::optional<KeepingStatus>& keeping, const Moment& now) {
  json::array list;
  for (const auto& job : jobs) {
    json::array nodes;
    for (const auto& node : job.nodes) {
      json::object entry;
      entry["host"] = node.host;
      entry["addr"] = node.addr;
      entry["phase"] = node.phase;
      if (node.node_rank) entry["node_rank"] = *node.node_rank;
      entry["num_workers"] = node.num_workers;
      entry["connected"] = node.connected;
      if (node.monitor) entry["monitor"] = monitor_object(*node.monitor, now);
      if (!node.step_times.empty()) entry["step_times"] = step_times_array(node.step_times);
      nodes.push_back(std::move(entry));
    }
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
    entry["nodes"] = std::move(nodes);
    json::array rounds;
    for (const membership::RoundRecord& record : job.rounds)
      rounds.push_back(membership::round_record_object(record));
    entry["rounds"] = std::move(rounds);
    entry["seconds"] = membership::phase_seconds_object(job.seconds);
    // Seldom another one of a job that goes on as it did: nobody looks at more digits.
    if (const auto ettr = job.ettr_at(now.at)) entry["ettr"] = std::round(*ettr * 1000) / 1000;
    if (job.training) entry["training"] = training_object(*job.training);
    if (job.hang) entry["hang"] = hang_object(*job.hang);
    entry["stragglers"] = json::array(job.stragglers.begin(), job.stragglers.end());
    list.push_back(std::move(entry));
  }
  json::object all;
  all["version"] = DDPRUN_VERSION;
  all["jobs"] = std::move(list);
  json::array over;
  for (const auto& job : finished) over.push_back(finished_object(job, now));
  all["finished"] = std::move(over);
  all["journal"] = nullptr;
  if (keeping) all["journal"] = keeping_object(*keeping);
  return json::serialize(all) + "\n";
}

}  // namespace ddprun::rendezvous
