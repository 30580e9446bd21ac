// SPDX-License-Identifier: Apache-2.0
// The past of each job since `top` was started: the daemon keeps none. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ctl/top/state.h"

namespace ddprun::top {

// Values in the order in which they came. A full one drops every second value of its older half: it
// always begins where it began.
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
  const JobHistory& of(const std::string& run_id) const;  // of an unknown job: without values

 private:
  std::map<std::string, JobHistory> jobs_;
};

// Sums and means over all nodes that say something; a mean is nullopt where none does.
struct Machines {
  std::optional<double> cpu, gpu, least_gpu;
  double received = 0, sent = 0;
  bool is_known = false;
  std::size_t num_gpus = 0;
};
Machines machines_of(const Job& job);

// "▁" … "█" for 0 … 7; what is out of range becomes the nearest one.
std::string level_sign(double level);
inline constexpr double kLastLevel = 7;

// At most `columns` bars, from the least to the greatest value, which are `low` and `high`. A bar
// stands for the mean of several values where there are more. Empty for less than two values.
struct Sparkline {
  std::string bars;
  double low = 0, high = 0;
};
Sparkline sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace ddprun::top
