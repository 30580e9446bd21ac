// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/outliers.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>

namespace ddprun::doctor {
namespace {

// Of those that have several partners and are slow with each: the one whose slow ways cost most.
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
  // The worst one first: without it the others may be well.
  std::vector<Way> left = ways;
  while (const auto node = worst_node(left, is_slow)) {
    outliers.nodes.push_back(*node);
    std::erase_if(left, [&](const Way& way) { return way.from == *node || way.to == *node; });
  }
  std::sort(outliers.nodes.begin(), outliers.nodes.end());
  std::copy_if(left.begin(), left.end(), std::back_inserter(outliers.ways), is_slow);
  return outliers;
}

}  // namespace ddprun::doctor
