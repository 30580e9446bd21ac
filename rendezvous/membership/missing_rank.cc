// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/missing_rank.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "common/log.h"
#include "common/operation_facts.h"

namespace ddprun::membership {

std::string missing_from(const Inspected& inspected, std::size_t outlier) {
  struct Waiters {
    std::vector<int> ranks;
    std::chrono::milliseconds longest{0};
  };
  std::map<std::string, Waiters> operations;
  for (std::size_t i = 0; i < inspected.ranks.size(); ++i) {
    const RankReport& report = inspected.ranks[i].report;
    if (i == outlier || report.operation.empty()) continue;
    Waiters& waiting = operations[report.operation];
    waiting.ranks.push_back(report.global_rank);
    waiting.longest = std::max(waiting.longest, report.operation_time);
  }
  const RankReport& report = inspected.ranks.at(outlier).report;
  operations.erase(report.operation);
  if (operations.empty()) return "";
  auto& [operation, waiting] = *std::max_element(
      operations.begin(), operations.end(),
      [](const auto& a, const auto& b) { return a.second.ranks.size() < b.second.ranks.size(); });
  std::sort(waiting.ranks.begin(), waiting.ranks.end());
  char time[32];
  std::snprintf(time, sizeof time, "%.1f s", static_cast<double>(waiting.longest.count()) / 1000);
  const std::string instead = report.operation.empty() ? "" : ": it is in " + report.operation;
  return concat("rank ", report.global_rank, " never came to ", operation, instead, "; ",
                ranks_text(waiting.ranks), waiting.ranks.size() == 1 ? " waits" : " wait",
                " in it for ", time);
}

}  // namespace ddprun::membership
