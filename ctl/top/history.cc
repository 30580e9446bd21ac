// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace ddprun::top {

void Series::add(double value) {
  if (values_.size() >= kMost) {
    std::vector<double> kept;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (i >= kMost / 2 || i % 2 == 0) kept.push_back(values_[i]);
    }
    values_ = std::move(kept);
  }
  values_.push_back(value);
}

void History::take(const State& state) {
  std::map<std::string, JobHistory> live;
  for (std::size_t i = 0; i < state.num_live; ++i) {
    const Job& job = state.jobs[i];
    JobHistory history = std::move(jobs_[job.run_id]);
    const auto add = [](Series& series, const std::optional<double>& value) {
      if (value) series.add(*value);
    };
    const json::value& training = member(job.said, "training");
    add(history.loss, number(training, "loss"));
    add(history.samples, number(training, "samples_per_second"));
    add(history.step, number(member(member(training, "step_parts"), "step_seconds"), "mean"));
    const Machines machines = machines_of(job);
    add(history.cpu, machines.cpu);
    add(history.gpu, machines.gpu);
    if (machines.is_known) history.network.add(machines.received + machines.sent);
    live.insert_or_assign(job.run_id, std::move(history));
  }
  jobs_ = std::move(live);
}

const JobHistory& History::of(const std::string& run_id) const {
  static const JobHistory kNone;
  const auto known = jobs_.find(run_id);
  return known == jobs_.end() ? kNone : known->second;
}

Machines machines_of(const Job& job) {
  Machines all;
  double cpu = 0, gpu = 0, num_cpus = 0;
  for (const Node& node : job.nodes) {
    all.is_known = all.is_known || node.cpu || node.received || node.sent || !node.gpus.empty();
    if (node.cpu) cpu += *node.cpu, ++num_cpus;
    all.received += node.received.value_or(0);
    all.sent += node.sent.value_or(0);
    for (const auto& use : node.gpus) {
      if (!use) continue;
      gpu += *use;
      ++all.num_gpus;
      all.least_gpu = std::min(all.least_gpu.value_or(*use), *use);
    }
  }
  if (num_cpus > 0) all.cpu = cpu / num_cpus;
  if (all.num_gpus > 0) all.gpu = gpu / static_cast<double>(all.num_gpus);
  return all;
}

std::string level_sign(double level) {
  constexpr std::array kSigns = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kSigns.at(static_cast<std::size_t>(std::lround(std::clamp(level, 0.0, kLastLevel))));
}

Sparkline sparkline(const std::vector<double>& values, std::size_t columns) {
  Sparkline line;
  if (values.size() < 2 || columns == 0) return line;
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  line.low = *least;
  line.high = *greatest;
  const std::size_t num_bars = std::min(columns, values.size());
  for (std::size_t bar = 0; bar < num_bars; ++bar) {
    const auto at = [&](std::size_t index) {
      return values.begin() + static_cast<std::ptrdiff_t>(index * values.size() / num_bars);
    };
    const auto first = at(bar), end = at(bar + 1);
    const double mean = std::accumulate(first, end, 0.0) / static_cast<double>(end - first);
    const double share = line.high > line.low ? (mean - line.low) / (line.high - line.low) : 0.4;
    line.bars += level_sign(share * kLastLevel);
  }
  return line;
}

}  // namespace ddprun::top
