// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fault_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ddprun::bench {

using Kind = Fault::Kind;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr int kMostLateMessages = 400;
constexpr int kLargestPart = 10;  // a partition takes at most every tenth node

microseconds drawn_lasting(milliseconds keep_alive, Random& random) {
  if (random.chance(40)) return random.between(milliseconds(10), keep_alive * 9 / 10);
  return random.between(keep_alive * 9 / 10, keep_alive * (random.chance(10) ? 16 : 3));
}

}  // namespace

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kWorkerFails:
      return "a worker fails";
    case Kind::kAgentKilled:
      return "its ddprun is killed";
    case Kind::kPowerLoss:
      return "its power fails";
    case Kind::kPartition:
      return "it is cut off";
    case Kind::kStandStill:
      return "its ddprun stands still";
    case Kind::kLateMessage:
      return "a late message";
  }
  return "";
}

std::vector<int> draw_nodes(int count, int num_nodes, Random& random) {
  std::vector<int> all(static_cast<std::size_t>(num_nodes));
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < count; ++i) {
    std::swap(all[static_cast<std::size_t>(i)],
              all[static_cast<std::size_t>(i + random.index(num_nodes - i))]);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

std::vector<Fault> plan_faults(const FaultOptions& options, Random& random) {
  std::vector<Fault> plan;
  // Some come within moments of another one: races are made so.
  const auto moment = [&] {
    if (!plan.empty() && random.chance(25)) {
      const Fault& other = plan[random.below(plan.size())];
      return other.at + random.between(microseconds(0), milliseconds(random.chance(50) ? 2 : 300));
    }
    return random.between(microseconds(0), options.duration);
  };
  for (int i = 0; i < options.num_kills; ++i) {
    Fault fault;
    const int dice = random.index(100);
    fault.kind = dice < 50 ? Kind::kWorkerFails : dice < 80 ? Kind::kAgentKilled : Kind::kPowerLoss;
    fault.at = moment();
    fault.nodes = {random.index(options.num_nodes)};
    plan.push_back(std::move(fault));
  }
  for (int i = 0; i < options.num_partitions; ++i) {
    Fault fault;
    fault.kind = Kind::kPartition;
    fault.at = moment();
    fault.lasts = drawn_lasting(options.keep_alive, random);
    const int most = std::max(1, options.num_nodes / kLargestPart);
    fault.nodes = draw_nodes(1 + random.index(most), options.num_nodes, random);
    const int dice = random.index(100);
    fault.up = dice < 80;
    fault.down = dice < 60 || dice >= 80;
    plan.push_back(std::move(fault));
  }
  for (const int node : options.slow_nodes) {
    for (int i = 0; options.stand_still && i < 2; ++i) {
      Fault fault;
      fault.kind = Kind::kStandStill;
      fault.at = moment();
      fault.lasts = drawn_lasting(options.keep_alive, random);
      fault.nodes = {node};
      plan.push_back(std::move(fault));
    }
  }
  const int num_faults = static_cast<int>(plan.size());
  for (int i = 0; options.late_messages && i < std::min(num_faults * 4, kMostLateMessages); ++i) {
    Fault fault;
    fault.kind = Kind::kLateMessage;
    fault.at = moment();
    fault.nodes = {random.index(options.num_nodes)};
    fault.draw = random.next();
    plan.push_back(std::move(fault));
  }
  std::stable_sort(plan.begin(), plan.end(),
                   [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return plan;
}

}  // namespace ddprun::bench
