// SPDX-License-Identifier: Apache-2.0
// The ways between nodes. Pure.
#include <algorithm>
#include <cstdio>
#include <set>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/outliers.h"

namespace ddprun::doctor {
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
  outcome.verdict = Verdict::kFail;
  outcome.seen = nodes.names(outcome.nodes) + " gave no answer in time";
  outcome.fix = "does it hang? ddprunctl doctor there; its console";
  return outcome;
}

// Nodes that nobody reaches, or that reach nobody, are named once.
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
  outcome.verdict = Verdict::kFail;
  outcome.fix =
      "a firewall (nft list ruleset), a route (ip route get ADDRESS), a VLAN or a cable; ports of "
      "net.ipv4.ip_local_port_range must be open between nodes";
  std::set<int> involved;
  std::vector<std::string> seen;
  std::set<int> unreached;
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
  return outcome;
}

std::string time_text(double seconds) {
  char text[48];
  if (seconds < 0.001) {
    std::snprintf(text, sizeof text, "%.0f µs", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
  }
  return text;
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
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(seen) + "; " + outcome.seen;
  outcome.fix = "tracepath ADDRESS; is it another switch, a tunnel, a busy CPU or power saving?";
  return outcome;
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
  outcome.verdict = dead.empty() ? Verdict::kWarn : Verdict::kFail;
  seen.insert(seen.begin(), dead.begin(), dead.end());
  outcome.seen = list_text(seen) + (outcome.seen.empty() ? "" : "; " + outcome.seen);
  outcome.fix =
      "ethtool DEVICE (speed, duplex), ethtool -S DEVICE (errors, drops), cable and switch port; "
      "does another job run there?";
  return outcome;
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
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(seen);
  outcome.fix = "the same MTU on nodes and switches; ping -M do -s SIZE ADDRESS finds the largest";
  return outcome;
}

}  // namespace

std::vector<Check> ways_checks() {
  static constexpr char kGroup[] = "ways";
  const auto of_nodes = [](const char* name, const char* reads, const char* why,
                           Outcome (*judge)(const NodesFacts&, const Thresholds&)) {
    return Check{name, kGroup, reads, why, nullptr, judge};
  };
  return {
      of_nodes("nodes", "what each node says of itself, over the round's store",
               "a node that doesn't answer holds up all others", judge_answers),
      of_nodes("reachability", "a connection from each node to each other one",
               "workers connect to each other in all directions; one way that is closed is a hang",
               judge_reachability),
      of_nodes("latency", "100 round trips of a byte between pairs of nodes",
               "small collectives wait for the slowest way in each step", judge_latency),
      of_nodes("bandwidth", "64 MiB or 1 s of data, each way, between pairs of nodes",
               "collectives go as fast as the slowest way", judge_bandwidth),
      of_nodes("full_frames", "datagrams as large as the MTU, not to be broken up",
               "connections that meet such a way hang with the first large message",
               judge_full_frames),
  };
}

}  // namespace ddprun::doctor
