// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/second_look.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ctl/doctor/nodes/outliers.h"

namespace ddprun::doctor {

std::vector<NodePair> pairs_to_repeat(const std::vector<PairMeasure>& measures, double factor,
                                      double least) {
  std::vector<Way> ways;
  for (const PairMeasure& each : measures) {
    for (const double rate : {each.out_bits_per_second, each.in_bits_per_second}) {
      if (rate > 0) ways.push_back({each.from, each.to, 1 / rate});
    }
  }
  const double usual = find_outliers(ways, factor, 0).usual;
  std::vector<NodePair> pairs;
  for (const PairMeasure& each : measures) {
    const double rate = std::min(each.out_bits_per_second, each.in_bits_per_second);
    if (!each.failure.empty() || rate <= 0) continue;
    if (1 / rate > usual * factor || rate < least) pairs.emplace_back(each.from, each.to);
  }
  return pairs;
}

std::vector<Step> steps_for(const std::vector<NodePair>& pairs) {
  std::vector<Step> steps;
  std::vector<std::set<int>> busy;  // in each step
  for (const NodePair& pair : pairs) {
    std::size_t at = 0;
    while (at < steps.size() && (busy[at].contains(pair.first) || busy[at].contains(pair.second))) {
      ++at;
    }
    if (at == steps.size()) {
      steps.emplace_back();
      busy.emplace_back();
    }
    steps[at].push_back(pair);
    busy[at].insert({pair.first, pair.second});
  }
  return steps;
}

PairMeasure better_of(const PairMeasure& first, const PairMeasure& again) {
  PairMeasure better = first;
  better.times = first.times + again.times;
  if (!again.failure.empty()) return better;
  double out = again.out_bits_per_second, in = again.in_bits_per_second;
  if (again.from != first.from) std::swap(out, in);
  better.out_bits_per_second = std::max(first.out_bits_per_second, out);
  better.in_bits_per_second = std::max(first.in_bits_per_second, in);
  if (again.round_trip_seconds > 0) {
    better.round_trip_seconds = std::min(first.round_trip_seconds, again.round_trip_seconds);
  }
  return better;
}

}  // namespace ddprun::doctor
