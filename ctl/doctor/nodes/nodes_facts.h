// SPDX-License-Identifier: Apache-2.0
// The reports of a node to rank 0, on itself and on its ways to other nodes, and their JSON form.
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

// A node's report on itself.
struct NodeSheet {
  int node_rank = 0;
  std::string host, address;                    // the address as peers reach it
  int port = 0;                                 // of its PeerServer
  std::string interface;                        // the one that has the address; empty: none has it
  int mtu = 0;                                  // of that interface; 0: not known
  long long speed_mbits = 0;                    // of that interface; 0: not known
  std::map<std::string, std::string> versions;  // "kernel" → "6.1.0-30"; unknown ones are left out
  std::vector<Finding> findings;                // of the quick checks
};

// A node's attempt to reach another one.
struct Greeting {
  int peer = 0;  // node rank
  std::string failure;
  double offset_seconds = 0;  // the peer's clock minus this node's
  double error_seconds = 0;   // half of the round trip
};

// A problem with the name by which a node knows another one.
struct NameProblem {
  int peer = 0;
  std::string what;
};

struct NodeReach {
  int node_rank = 0;
  std::vector<Greeting> greetings;
  std::vector<NameProblem> names;
};

// The way between two nodes. `from` measured it.
struct PairMeasure {
  int from = 0, to = 0;
  std::string failure;
  double round_trip_seconds = 0;  // the median; 0: not measured
  double out_bits_per_second = 0, in_bits_per_second = 0;
  std::string frames;  // what is wrong with large frames; empty: nothing, or not known
  int times = 1;       // how often it was measured (better_of()); rank 0 counts
};

// docs/doctor.md has the keys.
boost::json::object finding_object(const Finding& finding);

std::string to_json(const NodeSheet& sheet);
std::string to_json(const NodeReach& reach);
std::string to_json(const PairMeasure& measure);
// The parsers return nullopt if the text isn't one.
std::optional<NodeSheet> parse_sheet(const std::string& text);
std::optional<NodeReach> parse_reach(const std::string& text);
std::optional<PairMeasure> parse_measure(const std::string& text);

// One rank's all-reduce with one backend.
struct RankCollective {
  int global_rank = 0, node_rank = 0;
  std::string backend;  // "host", "nccl"
  double num_bytes = 0, seconds = 0;
  std::string failure;
};

// All that rank 0 was told about the job's nodes. The checks of several nodes judge it.
struct NodesFacts {
  int num_nodes = 0;
  // Sheets and reaches are ordered by node rank. Nodes that didn't answer in time are missing.
  std::vector<NodeSheet> sheets;
  std::vector<NodeReach> reaches;
  std::vector<PairMeasure> pairs;
  int world_size = 0;
  std::vector<RankCollective> collectives;
  std::string no_collectives;      // why no collective was tried
  std::vector<std::string> notes;  // what could not be looked at, and why

  const NodeSheet* sheet(int node_rank) const;
  // Returns the host's name. Adds the node rank if others have the same name; "node 3" if it isn't
  // known.
  std::string name(int node_rank) const;
  // Returns all these names as one text: "gpu[01-30]".
  std::string names(const std::vector<int>& node_ranks) const;
  // Returns why `from` didn't reach `to`; empty: it did, or nothing is known of it.
  std::string failure(int from, int to) const;
};

// Returns "gpu[01-30,32], login1": groups names that differ only in the number at their end. Groups
// stand in the order of their first names. After `most` words it says how many hosts are left.
std::string host_ranges(const std::vector<std::string>& names, std::size_t most = 8);

}  // namespace ddprun::doctor
