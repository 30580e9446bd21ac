// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/checks.h"

#include <algorithm>

#include "common/error.h"
#include "common/suggest.h"

namespace ddprun::doctor {
namespace {

std::vector<Check> all_checks() {
  std::vector<Check> all;
  for (const auto& group : {host_checks(), network_checks(), environment_checks(), gpu_checks(),
                            gpu_state_checks(), rdma_checks(), endpoint_checks(), nodes_checks()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

}  // namespace

const std::vector<Check>& check_table() {
  static const std::vector<Check> table = all_checks();
  return table;
}

const Check* find_check(const std::string& name) {
  for (const Check& check : check_table()) {
    if (name == check.name) return &check;
  }
  return nullptr;
}

Finding run_check(const Check& check, const Facts& facts, const Thresholds& thresholds) {
  return {check.name, check.group, check.judge(facts, thresholds), check.why};
}

Finding run_check(const Check& check, const NodesFacts& nodes, const Thresholds& thresholds) {
  return {check.name, check.group, check.judge_nodes(nodes, thresholds), check.why};
}

std::vector<const Check*> parse_checks(const std::string& names, const std::string& flag) {
  std::vector<const Check*> chosen;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, end - at);
    const std::size_t before = chosen.size();
    std::vector<std::string> known;
    for (const Check& check : check_table()) {
      if (name == check.name || name == check.group) chosen.push_back(&check);
      known.emplace_back(check.name);
      known.emplace_back(check.group);
    }
    if (chosen.size() == before) {
      throw Error(ErrorCode::kInvalidArgument, flag + ": there is no check \"" + name + "\"" +
                                                   did_you_mean(name, known) +
                                                   "; ddprunctl doctor --list has them");
    }
    at = end + 1;
  }
  return chosen;
}

}  // namespace ddprun::doctor
