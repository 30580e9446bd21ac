// SPDX-License-Identifier: Apache-2.0
// What a terminal remembers of each job since it was opened: the daemon keeps no past. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ctl/top/state.h"

namespace ddprun::top {

// Values in the order in which they came. Where it is full every second one of its older half goes:
// it always begins where it began.
class Series {
 public:
  static constexpr std::size_t kMost = 600;
  void add(double value);
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

struct JobHistory {
  Series loss, samples, step, cpu, gpu, network;
};

class History {
 public:
  void take(const State& state);
  // Of a job that isn't there: without values.
  const JobHistory& of(const std::string& run_id) const;

 private:
  std::map<std::string, JobHistory> jobs_;
};

// Of all nodes that say something.
struct Sums {
  std::size_t num_nodes = 0, num_cpus = 0, num_gpus = 0;  // of so many nodes, nodes, GPUs
  double cpu = 0, gpu = 0, received = 0, sent = 0;        // sums
  double least_gpu = 1;
  double cpu_mean() const { return num_cpus > 0 ? cpu / static_cast<double>(num_cpus) : 0; }
  double gpu_mean() const { return num_gpus > 0 ? gpu / static_cast<double>(num_gpus) : 0; }
};
Sums sums_of(const Job& job);

}  // namespace ddprun::top
