// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/history.h"

#include <algorithm>
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
  for (const Job& job : state.jobs) {
    JobHistory history;
    if (const auto known = jobs_.find(job.run_id); known != jobs_.end()) {
      history = std::move(known->second);
      jobs_.erase(known);
    }
    if (job.training) {
      if (job.training->loss) history.loss.add(*job.training->loss);
      if (job.training->samples_per_second) history.samples.add(*job.training->samples_per_second);
      if (job.training->step_seconds) history.step.add(job.training->step_seconds->mean);
    }
    const Sums sums = sums_of(job);
    if (sums.num_cpus > 0) history.cpu.add(sums.cpu_mean());
    if (sums.num_gpus > 0) history.gpu.add(sums.gpu_mean());
    if (sums.num_nodes > 0) history.network.add(sums.received + sums.sent);
    live.insert_or_assign(job.run_id, std::move(history));
  }
  jobs_ = std::move(live);
}

const JobHistory& History::of(const std::string& run_id) const {
  static const JobHistory kNone;
  const auto known = jobs_.find(run_id);
  return known == jobs_.end() ? kNone : known->second;
}

Sums sums_of(const Job& job) {
  Sums sums;
  for (const Node& node : job.nodes) {
    if (!node.monitor) continue;
    ++sums.num_nodes;
    if (node.monitor->cpu) {
      ++sums.num_cpus;
      sums.cpu += *node.monitor->cpu;
    }
    sums.received += node.monitor->received.value_or(0);
    sums.sent += node.monitor->sent.value_or(0);
    for (const Gpu& gpu : node.monitor->gpus) {
      if (!gpu.use) continue;
      ++sums.num_gpus;
      sums.gpu += *gpu.use;
      sums.least_gpu = std::min(sums.least_gpu, *gpu.use);
    }
  }
  return sums;
}

}  // namespace ddprun::top
