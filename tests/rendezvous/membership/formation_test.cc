// SPDX-License-Identifier: Apache-2.0
// How nodes get their node rank: docs/internals/rendezvous.md, "Ranks".
#include "rendezvous/membership/formation.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using Hosts = std::vector<std::string>;

// A job whose nodes are placed one round after the other.
class Placing {
 public:
  explicit Placing(int max_nodes) { job_.settings.max_nodes = max_nodes; }

  void join(const std::string& host, const std::string& topology = "",
            std::optional<int> node_rank = std::nullopt) {
    Node& node = job_.nodes.add(++last_id_);
    node.join.host = host;
    node.join.topology = topology;
    node.join.node_rank = node_rank;
    node.connection = last_id_;
  }
  void lose(const std::string& host) {
    const auto found = std::find_if(job_.nodes.begin(), job_.nodes.end(), [&](const auto& entry) {
      return entry.second.join.host == host;
    });
    job_.nodes.erase(found->first);
  }
  // The nodes by node rank. 1 is the node that joined first.
  std::vector<NodeId> order() const { return choose_nodes(job_); }
  // The hosts by node rank.
  Hosts round() {
    const std::vector<NodeId> order = choose_nodes(job_);
    Hosts hosts;
    job_.rank_labels.clear();
    job_.nodes.edit_each([](Node& node) { node.node_rank.reset(); });
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      Node& node = job_.nodes.edit(order[rank]);
      node.node_rank = static_cast<int>(rank);
      job_.rank_labels.push_back(node.join.topology);
      hosts.push_back(node.join.host);
    }
    return hosts;
  }

 private:
  JobState job_;
  NodeId last_id_ = 0;
};

TEST_CASE("formation: host names give the order, digits count as numbers") {
  Placing nodes(4);
  for (const char* host : {"gpu10", "gpu9", "login", "gpu100"}) nodes.join(host);
  CHECK(nodes.round() == Hosts{"gpu9", "gpu10", "gpu100", "login"});
}

TEST_CASE("formation: equal names are ranked in join order") {
  Placing nodes(3);
  nodes.join("pod", "", std::nullopt);
  nodes.join("pod", "", 0);
  nodes.join("pod");
  CHECK(nodes.order() == std::vector<NodeId>{2, 1, 3});  // the second one wished for rank 0
}

TEST_CASE("formation: neighbours have neighbouring ranks") {
  Placing nodes(5);
  nodes.join("a", "pod1.rack10");
  nodes.join("b", "pod2.rack1");
  nodes.join("c", "pod1.rack2");
  nodes.join("d");
  nodes.join("e", "pod1.rack10");
  CHECK(nodes.round() == Hosts{"c", "a", "e", "b", "d"});
}

TEST_CASE("formation: a wished node rank goes before names and labels") {
  Placing nodes(3);
  nodes.join("a", "rack1");
  nodes.join("b", "rack1");
  nodes.join("z", "rack9", 0);
  CHECK(nodes.round() == Hosts{"z", "a", "b"});
}

TEST_CASE("formation: a node keeps its rank while it stays") {
  Placing nodes(3);
  for (const char* host : {"b", "c", "d"}) nodes.join(host);
  REQUIRE(nodes.round() == Hosts{"b", "c", "d"});
  nodes.lose("c");
  nodes.join("a");
  CHECK(nodes.round() == Hosts{"b", "a", "d"});
  nodes.lose("b");
  SECTION("those whose rank is gone fill the holes") { CHECK(nodes.round() == Hosts{"d", "a"}); }
}

TEST_CASE("formation: a lost node is replaced from its own group first") {
  Placing nodes(2);
  nodes.join("a", "pod1.rack1");
  nodes.join("b", "pod1.rack2");
  nodes.join("other-pod", "pod2.rack2");
  nodes.join("other-rack", "pod1.rack3");
  nodes.join("same-rack", "pod1.rack2");
  REQUIRE(nodes.round() == Hosts{"a", "b"});
  nodes.lose("b");
  CHECK(nodes.round() == Hosts{"a", "same-rack"});
  nodes.lose("same-rack");
  CHECK(nodes.round() == Hosts{"a", "other-rack"});
  nodes.lose("other-rack");
  CHECK(nodes.round() == Hosts{"a", "other-pod"});
}

TEST_CASE("formation: members win over spares that stand nearer") {
  Placing nodes(2);
  nodes.join("a", "pod1");
  nodes.join("b", "pod2");
  nodes.join("spare", "pod1");
  REQUIRE(nodes.round() == Hosts{"a", "b"});
  CHECK(nodes.round() == Hosts{"a", "b"});
}

TEST_CASE("start messages: nodes of one role are counted by themselves, too") {
  JobState job;
  std::vector<NodeId> order;
  const auto add = [&](const char* role, int num_workers) {
    Node& node = job.nodes.add(order.size() + 1);
    node.join.role = role;
    node.join.num_workers = num_workers;
    order.push_back(node.id);
  };
  add("trainer", 2);
  add("evaluator", 1);
  add("trainer", 4);
  add("evaluator", 3);
  const auto messages = start_messages(job, order, 1);
  const auto in_role = [&](NodeId id) {
    return std::pair(messages.at(id).first_role_rank, messages.at(id).role_world_size);
  };
  CHECK(in_role(1) == std::pair(0, 6));
  CHECK(in_role(2) == std::pair(0, 4));
  CHECK(in_role(3) == std::pair(2, 6));
  CHECK(in_role(4) == std::pair(1, 4));
  CHECK(messages.at(4).first_global_rank == 7);
  CHECK(messages.at(4).world_size == 10);
}

TEST_CASE("topology: levels that two labels share") {
  CHECK(shared_levels("pod1.rack7", "pod1.rack7") == 2);
  CHECK(shared_levels("pod1.rack7", "pod1.rack8") == 1);
  CHECK(shared_levels("pod1", "pod1.rack8") == 1);
  CHECK(shared_levels("pod1.rack7", "pod10.rack7") == 0);
  CHECK(shared_levels("", "") == 0);
}

}  // namespace
}  // namespace ddprun::membership
