// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/pair_plan.h"

#include <algorithm>
#include <numeric>

namespace ddprun::doctor {
namespace {

constexpr int kNobody = -1;

bool have_met(const Step& step, int one, int other) {
  return std::any_of(step.begin(), step.end(), [&](const NodePair& pair) {
    return pair == NodePair(one, other) || pair == NodePair(other, one);
  });
}

}  // namespace

std::vector<Step> all_pairs(const std::vector<int>& nodes) {
  // The circle method: one stays, the others move on by one place.
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

}  // namespace ddprun::doctor
