// SPDX-License-Identifier: Apache-2.0
// A node's reports to rank 0, of itself and of its ways to the others, and their form as JSON.
// Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ctl/doctor/finding.h"

namespace ddprun::doctor {

// A node's report of itself.
struct NodeSheet {
  int node_rank = 0;
  std::string host, address;                    // as peers reach it
  int port = 0;                                 // of its PeerServer
  std::string interface;                        // that has the address; empty: none has
  int mtu = 0;                                  // of that interface; 0: not known
  long long speed_mbits = 0;                    // likewise
  std::map<std::string, std::string> versions;  // "kernel" → "6.1.0-30"; without those not known
  std::vector<Finding> findings;                // of the quick checks
};

// A node's attempt to reach another one.
struct Greeting {
  int peer = 0;  // node rank
  std::string failure;
  double offset_seconds = 0;  // the peer's clock before ours
  double error_seconds = 0;   // half of the round trip
};

// A problem with a node's name for another one.
struct NameProblem {
  int peer = 0;
  std::string what;
};

struct NodeReach {
  int node_rank = 0;
  std::vector<Greeting> greetings;
  std::vector<NameProblem> names;
};

// The way between two nodes; the first one measured.
struct PairMeasure {
  int from = 0, to = 0;
  std::string failure;
  double round_trip_seconds = 0;  // the median; 0: not measured
  double out_bits_per_second = 0, in_bits_per_second = 0;
  std::string frames;  // what is wrong with large ones; empty: nothing, or nothing is known
  int times = 1;       // how often it was measured (better_of()); rank 0 counts
};

// docs/doctor.md has the keys.
boost::json::object finding_object(const Finding& finding);

std::string to_json(const NodeSheet& sheet);
std::string to_json(const NodeReach& reach);
std::string to_json(const PairMeasure& measure);
// nullopt: it is none.
std::optional<NodeSheet> parse_sheet(const std::string& text);
std::optional<NodeReach> parse_reach(const std::string& text);
std::optional<PairMeasure> parse_measure(const std::string& text);

// A backend's all-reduce, of a rank.
struct RankCollective {
  int global_rank = 0, node_rank = 0;
  std::string backend;  // "host", "nccl"
  double num_bytes = 0, seconds = 0;
  std::string failure;
};

// All that rank 0 was told of the job's nodes: what the checks of several nodes judge.
struct NodesFacts {
  int num_nodes = 0;
  // Each by node rank; those that didn't answer in time are missing.
  std::vector<NodeSheet> sheets;
  std::vector<NodeReach> reaches;
  std::vector<PairMeasure> pairs;
  int world_size = 0;
  std::vector<RankCollective> collectives;
  std::string no_collectives;      // why none was tried
  std::vector<std::string> notes;  // what could not be looked at, and why

  const NodeSheet* sheet(int node_rank) const;
  // Its host's name; with its rank where others have the same, "node 3" where it isn't known.
  std::string name(int node_rank) const;
  // All of them, put together: "gpu[01-30]".
  std::string names(const std::vector<int>& node_ranks) const;
  // Why `from` didn't reach `to`; empty: it did, or nothing is known of it.
  std::string failure(int from, int to) const;
};

// "gpu[01-30,32], login1": names that differ in the number at their end are put together, in the
// order in which each kind came first. At most `most` words, then how many hosts there are besides.
std::string host_ranges(const std::vector<std::string>& names, std::size_t most = 8);

}  // namespace ddprun::doctor
