// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/ways.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

namespace ddprun::doctor {
namespace {

// Finds nodes that are slow with each of their partners, at least two. Returns the one whose slow
// ways cost most.
std::optional<int> worst_node(const std::vector<Way>& ways,
                              const std::function<bool(const Way&)>& is_slow) {
  std::map<int, std::set<int>> partners, slow_partners;
  std::map<int, double> costs;
  for (const Way& way : ways) {
    partners[way.from].insert(way.to);
    partners[way.to].insert(way.from);
    if (!is_slow(way)) continue;
    slow_partners[way.from].insert(way.to);
    slow_partners[way.to].insert(way.from);
    costs[way.from] += way.cost;
    costs[way.to] += way.cost;
  }
  std::optional<int> worst;
  for (const auto& [node, slow] : slow_partners) {
    if (slow.size() < 2 || slow != partners[node]) continue;
    if (!worst || costs[node] > costs[*worst]) worst = node;
  }
  return worst;
}

constexpr int kNobody = -1;

bool have_met(const Step& step, int one, int other) {
  return std::any_of(step.begin(), step.end(), [&](const NodePair& pair) {
    return pair == NodePair(one, other) || pair == NodePair(other, one);
  });
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<long>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Outliers find_outliers(const std::vector<Way>& ways, double factor, double least) {
  Outliers outliers;
  std::map<int, double> best;
  for (const Way& way : ways) {
    for (const int node : {way.from, way.to}) {
      const auto [at, is_new] = best.emplace(node, way.cost);
      if (!is_new) at->second = std::min(at->second, way.cost);
    }
  }
  std::vector<double> costs;
  for (const auto& [node, cost] : best) costs.push_back(cost);
  outliers.usual = median_of(costs);
  const auto is_slow = [&](const Way& way) {
    return way.cost > outliers.usual * factor && way.cost - outliers.usual > least;
  };
  // Takes out the worst node first: without it the others may be good.
  std::vector<Way> left = ways;
  while (const auto node = worst_node(left, is_slow)) {
    outliers.nodes.push_back(*node);
    std::erase_if(left, [&](const Way& way) { return way.from == *node || way.to == *node; });
  }
  std::sort(outliers.nodes.begin(), outliers.nodes.end());
  std::copy_if(left.begin(), left.end(), std::back_inserter(outliers.ways), is_slow);
  return outliers;
}

std::vector<Step> all_pairs(const std::vector<int>& nodes) {
  // The circle method: one node stays, the others move on by one place.
  std::vector<int> circle = nodes;
  if (circle.size() % 2 != 0) circle.push_back(kNobody);
  std::vector<Step> steps;
  for (std::size_t i = 0; i + 1 < circle.size(); ++i) {
    Step step;
    for (std::size_t at = 0; at < circle.size() / 2; ++at) {
      const int one = circle[at], other = circle[circle.size() - 1 - at];
      if (one != kNobody && other != kNobody) step.emplace_back(one, other);
    }
    if (!step.empty()) steps.push_back(std::move(step));
    std::rotate(circle.begin() + 1, circle.end() - 1, circle.end());
  }
  return steps;
}

Step first_step(const std::vector<int>& nodes) {
  Step step;
  for (std::size_t i = 0; i + 1 < nodes.size(); i += 2) step.emplace_back(nodes[i], nodes[i + 1]);
  return step;
}

std::vector<Step> second_steps(const std::vector<int>& nodes, const Step& first,
                               const std::function<double(int node)>& speed) {
  std::vector<int> order = nodes;  // the slowest first
  std::stable_sort(order.begin(), order.end(),
                   [&](int one, int other) { return speed(one) < speed(other); });
  Step second;
  while (order.size() >= 2) {
    const int slow = order.front();
    order.erase(order.begin());
    auto partner = std::prev(order.end());
    while (partner != order.begin() && have_met(first, slow, *partner)) --partner;
    if (have_met(first, slow, *partner)) partner = std::prev(order.end());
    second.emplace_back(slow, *partner);
    order.erase(partner);
  }
  std::vector<Step> steps = {std::move(second)};
  if (order.empty() || nodes.size() < 2) return steps;
  const int alone = order.front();
  const int fastest = *std::max_element(nodes.begin(), nodes.end(), [&](int one, int other) {
    return (one == alone ? -1 : speed(one)) < (other == alone ? -1 : speed(other));
  });
  steps.push_back({{alone, fastest}});
  return steps;
}

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
  std::vector<std::set<int>> busy;  // the nodes of each step
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
