// SPDX-License-Identifier: Apache-2.0
// Checks of several nodes: the ways between them, how equal they are, the collectives of all ranks.
// Pure.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "common/interfaces.h"
#include "common/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/ways.h"
#include "ctl/number_texts.h"

namespace ddprun::doctor {
using ctl::printed;

namespace {

constexpr char kOneNode[] = "there is one node";
constexpr char kNoPair[] = "no pair of nodes was measured";

std::string arrow(const NodesFacts& nodes, int from, int to) {
  return nodes.name(from) + " → " + nodes.name(to);
}

void concerns(Outcome& outcome, const std::set<int>& nodes) {
  outcome.nodes.assign(nodes.begin(), nodes.end());
}

Outcome judge_answers(const NodesFacts& nodes, const Thresholds&) {
  std::set<int> silent;
  for (int rank = 0; rank < nodes.num_nodes; ++rank) {
    const bool is_told = std::any_of(nodes.reaches.begin(), nodes.reaches.end(),
                                     [&](const NodeReach& each) { return each.node_rank == rank; });
    if (nodes.sheet(rank) == nullptr || (nodes.num_nodes > 1 && !is_told)) silent.insert(rank);
  }
  Outcome outcome = ok(concat(nodes.num_nodes, nodes.num_nodes == 1 ? " node" : " nodes"),
                       "all of them, in time");
  if (silent.empty()) return outcome;
  concerns(outcome, silent);
  outcome.seen = nodes.names(outcome.nodes) + " gave no answer in time";
  return failed(outcome, "does it hang? ddprunctl doctor there; its console");
}

// A node that nobody reaches, or that reaches nobody, is named once.
Outcome judge_reachability(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  int num_tried = 0;
  std::vector<std::pair<int, int>> failed;
  for (const NodeReach& reach : nodes.reaches) {
    for (const Greeting& each : reach.greetings) {
      ++num_tried;
      if (!each.failure.empty()) failed.emplace_back(reach.node_rank, each.peer);
    }
  }
  if (num_tried == 0) return unknown("no node said whom it reaches");
  Outcome outcome = ok(concat("all ", num_tried, " ways"), "each node connects to each other one");
  if (failed.empty()) return outcome;
  std::vector<std::string> seen;
  std::set<int> involved, unreached;
  const auto others = nodes.sheets.size() - 1;
  for (const NodeSheet& sheet : nodes.sheets) {
    const auto to = std::count_if(failed.begin(), failed.end(),
                                  [&](const auto& way) { return way.second == sheet.node_rank; });
    if (others >= 2 && static_cast<std::size_t>(to) == others) unreached.insert(sheet.node_rank);
  }
  for (const int rank : unreached) seen.push_back("no node reaches " + nodes.name(rank));
  for (const auto& [from, to] : failed) {
    if (unreached.contains(to)) continue;
    if (unreached.contains(from) && unreached.size() < others) continue;
    seen.push_back(arrow(nodes, from, to) + ": " + one_line(nodes.failure(from, to)));
    involved.insert({from, to});
  }
  involved.insert(unreached.begin(), unreached.end());
  concerns(outcome, involved);
  outcome.seen = list_text(seen);
  return with_fix(
      Verdict::kFail, outcome,
      "a firewall (nft list ruleset), a route (ip route get ADDRESS), a VLAN or a cable; ports of "
      "net.ipv4.ip_local_port_range must be open between nodes");
}

std::string time_text(double seconds) {
  return seconds < 0.001 ? printed("%.0f µs", seconds * 1e6) : printed("%.1f ms", seconds * 1e3);
}

Outcome judge_latency(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  std::vector<Way> ways;
  for (const PairMeasure& pair : nodes.pairs) {
    if (pair.round_trip_seconds > 0) ways.push_back({pair.from, pair.to, pair.round_trip_seconds});
  }
  if (ways.empty()) return unknown(kNoPair);
  const double factor = limits.at("latency.factor");
  const Outliers outliers = find_outliers(ways, factor, limits.at("latency.least"));
  Outcome outcome = ok("usually " + time_text(outliers.usual) + " for a round trip",
                       concat("at most ", factor, " times the median"));
  if (outliers.nodes.empty() && outliers.ways.empty()) return outcome;
  std::vector<std::string> seen;
  std::set<int> involved(outliers.nodes.begin(), outliers.nodes.end());
  for (const int node : outliers.nodes) {
    std::vector<double> times;
    for (const Way& way : ways) {
      if (way.from == node || way.to == node) times.push_back(way.cost);
    }
    seen.push_back(nodes.name(node) + " with everybody " + time_text(median_of(times)));
  }
  for (const Way& way : outliers.ways) {
    seen.push_back(nodes.name(way.from) + " – " + nodes.name(way.to) + " " + time_text(way.cost));
    involved.insert({way.from, way.to});
  }
  concerns(outcome, involved);
  outcome.seen = list_text(seen) + "; " + outcome.seen;
  return warned(outcome,
                "tracepath ADDRESS; is it another switch, a tunnel, a busy CPU or power saving?");
}

Outcome judge_bandwidth(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  std::vector<Way> ways;
  std::vector<std::string> dead;
  std::set<int> involved;
  for (const PairMeasure& pair : nodes.pairs) {
    if (!pair.failure.empty()) {
      dead.push_back(nodes.name(pair.from) + " – " + nodes.name(pair.to) + ": " +
                     one_line(pair.failure));
      involved.insert({pair.from, pair.to});
    }
    const double out = pair.out_bits_per_second, in = pair.in_bits_per_second;
    if (out > 0) ways.push_back({pair.from, pair.to, 1 / out});
    if (in > 0) ways.push_back({pair.to, pair.from, 1 / in});
  }
  if (ways.empty() && dead.empty()) return unknown(kNoPair);
  const double factor = limits.at("bandwidth.factor");
  const double least = limits.at("bandwidth.least") * 1e6;
  const Outliers outliers = find_outliers(ways, factor, 0);
  Outcome outcome =
      ok(ways.empty() ? "" : "usually " + rate_text(1 / outliers.usual),
         least > 0 ? concat("at least ", rate_text(least), " and 1/", factor, " of the median")
                   : concat("at least 1/", factor, " of the median"));
  std::vector<std::string> seen;
  for (const int node : outliers.nodes) {
    std::vector<double> sent, received;
    for (const Way& way : ways) {
      if (way.from == node) sent.push_back(way.cost);
      if (way.to == node) received.push_back(way.cost);
    }
    const auto rate = [](const std::vector<double>& costs) {
      return costs.empty() ? std::string("nothing") : rate_text(1 / median_of(costs));
    };
    seen.push_back(nodes.name(node) + " with everybody: sends " + rate(sent) + ", receives " +
                   rate(received));
    involved.insert(node);
  }
  for (const Way& way : outliers.ways) {
    seen.push_back(arrow(nodes, way.from, way.to) + " " + rate_text(1 / way.cost));
    involved.insert({way.from, way.to});
  }
  if (seen.empty()) {
    for (const Way& way : ways) {
      if (1 / way.cost >= least) continue;
      seen.push_back(arrow(nodes, way.from, way.to) + " " + rate_text(1 / way.cost));
      involved.insert({way.from, way.to});
    }
  }
  if (seen.empty() && dead.empty()) return outcome;
  concerns(outcome, involved);
  seen.insert(seen.begin(), dead.begin(), dead.end());
  outcome.seen = list_text(seen) + (outcome.seen.empty() ? "" : "; " + outcome.seen);
  return with_fix(
      dead.empty() ? Verdict::kWarn : Verdict::kFail, outcome,
      "ethtool DEVICE (speed, duplex), ethtool -S DEVICE (errors, drops), cable and switch port; "
      "does another job run there?");
}

Outcome judge_full_frames(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  std::vector<std::string> seen;
  std::set<int> involved;
  for (const PairMeasure& pair : nodes.pairs) {
    if (pair.frames.empty()) continue;
    seen.push_back(arrow(nodes, pair.from, pair.to) + ": " + one_line(pair.frames));
    involved.insert({pair.from, pair.to});
  }
  if (nodes.pairs.empty()) return unknown(kNoPair);
  Outcome outcome = ok("they arrive", "frames as large as the MTU arrive whole");
  if (seen.empty()) return outcome;
  concerns(outcome, involved);
  outcome.seen = list_text(seen);
  return warned(outcome,
                "the same MTU on nodes and switches; ping -M do -s SIZE ADDRESS finds the largest");
}

// Node ranks by a value that the nodes have. Nodes whose value isn't known are left out.
using ByValue = std::map<std::string, std::vector<int>>;

// Makes "1500 on gpu[01-30]; 9000 on gpu31", the most frequent value first. Sets `odd` to the nodes
// with other values.
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
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  if (values.empty()) return skipped("no node tells it");
  if (values.size() == 1) return ok(one_line(values.begin()->first), wanted);
  Outcome outcome{Verdict::kWarn, "", wanted, fix};
  outcome.seen = values_text(nodes, values, outcome.nodes);
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

constexpr char kKernel[] = "kernel", kDriver[] = "driver", kCuda[] = "cuda", kNccl[] = "nccl",
               kTorch[] = "torch", kDdprun[] = "ddprun";

template <const char* what>
Outcome judge_version(const NodesFacts& nodes, const Thresholds&) {
  return judge_alike(nodes, versions_of(nodes, what), "the same on all nodes",
                     concat("install the same ", what, " on all nodes"));
}

Outcome judge_ddprun_version(const NodesFacts& nodes, const Thresholds& limits) {
  Outcome outcome = judge_version<kDdprun>(nodes, limits);
  std::set<std::string> majors;
  for (const auto& [version, ranks] : versions_of(nodes, kDdprun)) {
    majors.insert(version.substr(0, version.find('.')));
  }
  if (majors.size() > 1 && outcome.verdict == Verdict::kWarn) outcome.verdict = Verdict::kFail;
  return outcome;
}

// Returns each node's clock minus the clock of the first node that answered.
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
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  const std::map<int, double> clocks = clocks_of(nodes);
  if (clocks.size() < 2) return unknown("no node's clock is known");
  std::vector<double> offsets;
  for (const auto& [node, offset] : clocks) offsets.push_back(offset);
  // With two clocks nobody knows which is right: the second one counts as different.
  const double usual = clocks.size() == 2 ? 0 : median_of(offsets);
  const double most = limits.at("node_clocks.warn");
  double largest = 0;
  Outcome outcome;
  std::vector<std::string> seen;
  for (const auto& [node, offset] : clocks) {
    const double skew = offset - usual;
    largest = std::max(largest, std::abs(skew));
    if (std::abs(skew) <= most) continue;
    seen.push_back(nodes.name(node) + printed(" is %.3f s ", std::abs(skew)) +
                   (skew > 0 ? "ahead" : "behind"));
    outcome.nodes.push_back(node);
  }
  outcome.wanted = concat("at most ", most, " s from the others' clocks");
  if (seen.empty()) {
    outcome.seen = printed("at most %.1f ms apart", largest * 1e3);
    return outcome;
  }
  outcome.seen = list_text(seen);
  return warned(outcome, "systemctl enable --now chrony; chronyc makestep, on these nodes");
}

Outcome judge_node_names(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
  std::map<int, std::pair<std::string, std::vector<int>>> problems;  // by the node whose name it is
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
  outcome.seen = list_text(seen, 4);
  return warned(outcome, "a line \"ADDRESS NAME\" in /etc/hosts of all nodes, or in the DNS");
}

Outcome judge_node_interfaces(const NodesFacts& nodes, const Thresholds&) {
  if (nodes.num_nodes == 1) return skipped(kOneNode);
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
  outcome.seen = list_text(seen);
  return warned(
      outcome,
      "name the rendezvous by an address of the fast network: a node says of itself the address "
      "from which it reaches that");
}

constexpr char kHostBackend[] = "host", kNcclBackend[] = "nccl";

template <const char* backend>
Outcome judge_backend(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.world_size == 1) return skipped("there is one rank");
  const bool is_nccl = backend == kNcclBackend;
  if (!nodes.no_collectives.empty()) return unknown("not tried: " + one_line(nodes.no_collectives));
  std::vector<std::string> failed;
  std::set<int> concerned;
  double slowest = 0, num_bytes = 0;
  for (const RankCollective& each : nodes.collectives) {
    if (each.backend != backend) continue;
    if (!each.failure.empty()) {
      const std::string where = each.node_rank < 0 ? "" : " on " + nodes.name(each.node_rank);
      failed.push_back(concat("rank ", each.global_rank, where, ": ", one_line(each.failure)));
      if (each.node_rank >= 0) concerned.insert(each.node_rank);
    }
    slowest = std::max(slowest, each.seconds);
    num_bytes = std::max(num_bytes, each.num_bytes);
  }
  Outcome outcome;
  const double least = limits.at("all_reduce.least") * 1e6;
  outcome.wanted = "the right sum on every rank" +
                   (least > 0 ? ", at least " + rate_text(least) : std::string());
  if (!failed.empty()) {
    outcome.nodes.assign(concerned.begin(), concerned.end());
    outcome.seen = list_text(failed, 4);
    return with_fix(Verdict::kFail, outcome,
                    is_nccl ? "NCCL_DEBUG=INFO says what NCCL does; docs/nccl.md"
                            : "what reachability and bandwidth say; the ranks' output");
  }
  if (slowest <= 0) return skipped("not every rank has a GPU and NCCL");
  // The bytes that each rank sends and receives, computed as nccl-tests do.
  const double ranks = nodes.world_size;
  const double rate = num_bytes * 8 * 2 * (ranks - 1) / ranks / slowest;
  outcome.seen = concat(size_text(num_bytes), " over ", nodes.world_size,
                        " ranks: ", rate_text(rate), " bus bandwidth");
  if (rate >= least) return outcome;
  return warned(outcome, is_nccl ? "NCCL_DEBUG=INFO says which adapters it takes"
                                 : "what bandwidth says; a faster network");
}

}  // namespace

std::vector<Check> nodes_checks() {
  static constexpr char kSkew[] = "nodes of one job that differ fail in ways that are hard to find";
  const auto of_nodes = [](const char* name, const char* group, const char* reads, const char* why,
                           Outcome (*judge)(const NodesFacts&, const Thresholds&),
                           bool is_of_all_ranks = false) {
    return Check{name, group, reads, why, nullptr, judge, is_of_all_ranks};
  };
  return {
      of_nodes("nodes", "ways", "what each node says of itself, over the round's store",
               "a node that doesn't answer holds up all others", judge_answers),
      of_nodes("reachability", "ways", "a connection from each node to each other one",
               "workers connect to each other in all directions; one way that is closed is a hang",
               judge_reachability),
      of_nodes("latency", "ways", "100 round trips of a byte between pairs of nodes",
               "small collectives wait for the slowest way in each step", judge_latency),
      of_nodes("bandwidth", "ways", "64 MiB or 1 s of data, each way, between pairs of nodes",
               "collectives go as fast as the slowest way", judge_bandwidth),
      of_nodes("full_frames", "ways", "datagrams as large as the MTU, not to be broken up",
               "connections that meet such a way hang with the first large message",
               judge_full_frames),
      of_nodes("node_mtu", "alike", "MTU of the interface with each node's address",
               "large messages to a node with a smaller MTU vanish where nobody says so",
               judge_node_mtu),
      of_nodes("node_interfaces", "alike", "that interface, its speed",
               "the job's traffic goes over these, and as fast as the slowest",
               judge_node_interfaces),
      of_nodes("node_names", "alike", "getaddrinfo(3) of each node's name, on the others",
               "programs (Gloo, torchrun's) find their peers by name", judge_node_names),
      of_nodes("node_clocks", "alike", "four time stamps between each two nodes",
               "logs of several nodes can't be put in order, certificates expire early or late",
               judge_node_clocks),
      of_nodes("ddprun_versions", "alike", "version of ddprunctl",
               "nodes of different versions may not understand each other", judge_ddprun_version),
      of_nodes("kernel_versions", "alike", "uname(2)", kSkew, judge_version<kKernel>),
      of_nodes("driver_versions", "alike", "/proc/driver/nvidia/version", kSkew,
               judge_version<kDriver>),
      of_nodes("cuda_versions", "alike", "that PyTorch was built for, in site-packages", kSkew,
               judge_version<kCuda>),
      of_nodes("nccl_versions", "alike", "nvidia_nccl_* in site-packages",
               "ranks with different NCCL versions don't meet, or hang", judge_version<kNccl>),
      of_nodes("torch_versions", "alike", "torch-* in site-packages", kSkew, judge_version<kTorch>),
      of_nodes("all_reduce", "collectives", "ddprun-check on every rank: the host communicator",
               "this is what training does in every step", judge_backend<kHostBackend>, true),
      of_nodes("all_reduce_nccl", "collectives", "likewise: NCCL, where every rank has a GPU",
               "this is what training on GPUs does in every step", judge_backend<kNcclBackend>,
               true),
  };
}

}  // namespace ddprun::doctor
