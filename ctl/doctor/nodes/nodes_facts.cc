// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/nodes_facts.h"

#include <algorithm>

#include "common/log.h"
#include "ctl/doctor/nodes/host_ranges.h"

namespace ddprun::doctor {

const NodeSheet* NodesFacts::sheet(int node_rank) const {
  for (const NodeSheet& each : sheets) {
    if (each.node_rank == node_rank) return &each;
  }
  return nullptr;
}

std::string NodesFacts::name(int node_rank) const {
  const NodeSheet* own = sheet(node_rank);
  if (own == nullptr) return concat("node ", node_rank);
  const auto num_equal = std::count_if(
      sheets.begin(), sheets.end(), [&](const NodeSheet& each) { return each.host == own->host; });
  const std::string host = one_line(own->host);
  return num_equal == 1 ? host : concat(host, " (node ", node_rank, ")");
}

std::string NodesFacts::names(const std::vector<int>& node_ranks) const {
  std::vector<std::string> all;
  for (const int rank : node_ranks) all.push_back(name(rank));
  return host_ranges(all);
}

std::string NodesFacts::failure(int from, int to) const {
  for (const NodeReach& reach : reaches) {
    if (reach.node_rank != from) continue;
    for (const Greeting& each : reach.greetings) {
      if (each.peer == to) return each.failure;
    }
  }
  return "";
}

}  // namespace ddprun::doctor
