// SPDX-License-Identifier: Apache-2.0
// What is to be alike on all nodes. Pure.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/outliers.h"

namespace ddprun::doctor {
namespace {

constexpr char kAlone[] = "there is one node";

// Nodes by what they have; those where nothing is known are left out.
using ByValue = std::map<std::string, std::vector<int>>;

// "1500 on gpu[01-30]; 9000 on gpu31": the most frequent first. `odd`: the nodes of the others.
std::string values_text(const NodesFacts& nodes, const ByValue& values, std::vector<int>& odd) {
  std::vector<std::pair<std::string, std::vector<int>>> order(values.begin(), values.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& one, const auto& other) {
    return one.second.size() > other.second.size();
  });
  std::string text;
  for (std::size_t i = 0; i < order.size(); ++i) {
    text += (i == 0 ? "" : "; ") + one_line(order[i].first) + " on " + nodes.names(order[i].second);
    if (i > 0) odd.insert(odd.end(), order[i].second.begin(), order[i].second.end());
  }
  std::sort(odd.begin(), odd.end());
  return text;
}

Outcome judge_alike(const NodesFacts& nodes, const ByValue& values, const std::string& wanted,
                    const std::string& fix) {
  if (nodes.num_nodes == 1) return skipped(kAlone);
  if (values.empty()) return skipped("no node tells it");
  if (values.size() == 1) return ok(one_line(values.begin()->first), wanted);
  Outcome outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.seen = values_text(nodes, values, outcome.nodes);
  outcome.wanted = wanted;
  outcome.fix = fix;
  return outcome;
}

Outcome judge_node_mtu(const NodesFacts& nodes, const Thresholds&) {
  ByValue values;
  for (const NodeSheet& each : nodes.sheets) {
    if (each.mtu > 0) values[std::to_string(each.mtu)].push_back(each.node_rank);
  }
  return judge_alike(nodes, values, "one MTU on all nodes",
                     "ip link set DEVICE mtu N, the same on every node and switch");
}

ByValue versions_of(const NodesFacts& nodes, const std::string& what) {
  ByValue values;
  for (const NodeSheet& each : nodes.sheets) {
    const auto found = each.versions.find(what);
    if (found != each.versions.end()) values[found->second].push_back(each.node_rank);
  }
  return values;
}

Outcome judge_version(const NodesFacts& nodes, const char* what) {
  return judge_alike(nodes, versions_of(nodes, what), "the same on all nodes",
                     concat("install the same ", what, " on all nodes"));
}

Outcome judge_ddprun_version(const NodesFacts& nodes, const Thresholds&) {
  Outcome outcome = judge_version(nodes, "ddprun");
  std::set<std::string> majors;
  for (const auto& [version, ranks] : versions_of(nodes, "ddprun")) {
    majors.insert(version.substr(0, version.find('.')));
  }
  if (majors.size() > 1 && outcome.verdict == Verdict::kWarn) outcome.verdict = Verdict::kFail;
  return outcome;
}
Outcome judge_kernel_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_version(nodes, "kernel");
}
Outcome judge_driver_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_version(nodes, "driver");
}
Outcome judge_cuda_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_version(nodes, "cuda");
}
Outcome judge_nccl_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_version(nodes, "nccl");
}
Outcome judge_torch_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_version(nodes, "torch");
}

// Each node's clock before that of the first one that answered.
std::map<int, double> clocks_of(const NodesFacts& nodes) {
  std::map<int, double> clocks;
  if (nodes.reaches.empty()) return clocks;
  const int base = nodes.reaches.front().node_rank;
  clocks[base] = 0;
  for (const NodeReach& reach : nodes.reaches) {
    for (const Greeting& each : reach.greetings) {
      if (!each.failure.empty()) continue;
      if (reach.node_rank == base) clocks[each.peer] = each.offset_seconds;
      if (each.peer == base) clocks.emplace(reach.node_rank, -each.offset_seconds);
    }
  }
  return clocks;
}

Outcome judge_node_clocks(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.num_nodes == 1) return skipped(kAlone);
  const std::map<int, double> clocks = clocks_of(nodes);
  if (clocks.size() < 2) return unknown("no node's clock is known");
  std::vector<double> offsets;
  for (const auto& [node, offset] : clocks) offsets.push_back(offset);
  // Of two nobody knows which is right: the second one differs.
  const double usual = clocks.size() == 2 ? 0 : median_of(offsets);
  const double most = limits.at("node_clocks.warn");
  double largest = 0;
  Outcome outcome;
  std::vector<std::string> seen;
  for (const auto& [node, offset] : clocks) {
    const double skew = offset - usual;
    largest = std::max(largest, std::abs(skew));
    if (std::abs(skew) <= most) continue;
    char text[64];
    std::snprintf(text, sizeof text, " is %.3f s %s", std::abs(skew),
                  skew > 0 ? "ahead" : "behind");
    seen.push_back(nodes.name(node) + text);
    outcome.nodes.push_back(node);
  }
  outcome.wanted = concat("at most ", most, " s from the others' clocks");
  if (seen.empty()) {
    char text[64];
    std::snprintf(text, sizeof text, "at most %.1f ms apart", largest * 1e3);
    outcome.seen = text;
    return outcome;
  }
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(seen);
  outcome.fix = "systemctl enable --now chrony; chronyc makestep, on these nodes";
  return outcome;
}

Outcome judge_node_names(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kAlone);
  std::map<int, std::pair<std::string, std::vector<int>>> problems;  // by whose name it is
  for (const NodeReach& reach : nodes.reaches) {
    for (const NameProblem& each : reach.names) {
      problems[each.peer].first = each.what;
      problems[each.peer].second.push_back(reach.node_rank);
    }
  }
  Outcome outcome =
      ok("each node's name has an address on the others", "an address that is not the loopback's");
  if (problems.empty()) return outcome;
  std::vector<std::string> seen;
  for (const auto& [peer, problem] : problems) {
    seen.push_back(nodes.name(peer) + " on " + nodes.names(problem.second) + ": " +
                   one_line(problem.first));
    outcome.nodes.push_back(peer);
  }
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(seen, 4);
  outcome.fix = "a line \"ADDRESS NAME\" in /etc/hosts of all nodes, or in the DNS";
  return outcome;
}

Outcome judge_node_interfaces(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kAlone);
  Outcome outcome;
  std::vector<std::string> seen;
  ByValue speeds;
  for (const NodeSheet& each : nodes.sheets) {
    if (each.speed_mbits > 0) {
      speeds[rate_text(static_cast<double>(each.speed_mbits) * 1e6)].push_back(each.node_rank);
    }
    if (each.interface.empty() || !is_virtual_interface(each.interface)) continue;
    seen.push_back(nodes.name(each.node_rank) + " is reached over " + one_line(each.interface));
    outcome.nodes.push_back(each.node_rank);
  }
  outcome.wanted = "interfaces of one speed, not the loopback's or a container network's";
  if (speeds.size() > 1) seen.push_back(values_text(nodes, speeds, outcome.nodes));
  if (seen.empty()) {
    ByValue names;
    for (const NodeSheet& each : nodes.sheets) names[each.interface].push_back(each.node_rank);
    std::vector<int> odd;
    outcome.seen = values_text(nodes, names, odd);
    return outcome;
  }
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(seen);
  outcome.fix =
      "name the rendezvous by an address of the fast network: a node says of itself the address "
      "from which it reaches that";
  return outcome;
}

}  // namespace

std::vector<Check> nodes_checks() {
  static constexpr char kGroup[] = "alike";
  static constexpr char kSkew[] = "nodes of one job that differ fail in ways that are hard to find";
  const auto of_nodes = [](const char* name, const char* reads, const char* why,
                           Outcome (*judge)(const NodesFacts&, const Thresholds&)) {
    return Check{name, kGroup, reads, why, nullptr, judge};
  };
  return {
      of_nodes("node_mtu", "MTU of the interface with each node's address",
               "large messages to a node with a smaller MTU vanish where nobody says so",
               judge_node_mtu),
      of_nodes("node_interfaces", "that interface, its speed",
               "the job's traffic goes over these, and as fast as the slowest",
               judge_node_interfaces),
      of_nodes("node_names", "getaddrinfo(3) of each node's name, on the others",
               "programs (Gloo, torchrun's) find their peers by name", judge_node_names),
      of_nodes("node_clocks", "four time stamps between each two nodes",
               "logs of several nodes can't be put in order, certificates expire early or late",
               judge_node_clocks),
      of_nodes("ddprun_versions", "version of ddprunctl",
               "nodes of different versions may not understand each other", judge_ddprun_version),
      of_nodes("kernel_versions", "uname(2)", kSkew, judge_kernel_version),
      of_nodes("driver_versions", "/proc/driver/nvidia/version", kSkew, judge_driver_version),
      of_nodes("cuda_versions", "that PyTorch was built for, in site-packages", kSkew,
               judge_cuda_version),
      of_nodes("nccl_versions", "nvidia_nccl_* in site-packages",
               "ranks with different NCCL versions don't meet, or hang", judge_nccl_version),
      of_nodes("torch_versions", "torch-* in site-packages", kSkew, judge_torch_version),
  };
}

}  // namespace ddprun::doctor
