// SPDX-License-Identifier: Apache-2.0
// A job's nodes: which are in it, which are connected, and which have been silent for too long. It
// also sends messages to them. Look-ups and counts take O(1). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

class Roster {
 public:
  using TimePoint = Clock::time_point;
  using Optional = std::optional<TimePoint>;

  // Nodes that `mine` already has come from an earlier rendezvous process.
  Roster(const MachineOptions& options, const JobState& job, RosterState& mine, TimePoint now);
  // Gives all nodes time to come back, until `until`.
  void expect_all_back(TimePoint now, TimePoint until);

  Node* at(ConnectionId connection);
  std::optional<NodeId> id_at(ConnectionId connection) const;
  // Returns the node of an agent that was already taken in.
  std::optional<NodeId> known(const Join& join) const;
  template <typename Wanted>
  std::vector<NodeId> ids_of(Wanted&& wanted) const {
    std::vector<NodeId> ids;
    for (const auto& [id, node] : mine_.nodes) {
      if (wanted(node)) ids.push_back(id);
    }
    return ids;
  }
  // Returns whether there was such a node.
  template <typename Wanted>
  bool erase_if(Wanted&& wanted, Actions& out) {
    const std::vector<NodeId> ids = ids_of(wanted);
    for (const NodeId id : ids) erase(id, out);
    return !ids.empty();
  }
  // Access for changes that no count depends on; other changes have functions here.
  NodeTable& nodes() { return mine_.nodes; }

  Node& add(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
            const std::string& session, TimePoint now);
  void erase(NodeId id, Actions& out);
  // Gives the node the --node-rank that it asked for. Returns the node that had it; nullopt: none.
  std::optional<NodeId> take_rank_wish(const Node& node);

  void set_phase(Node& node, NodePhase phase);
  void set_rank(Node& node, std::optional<int> rank);
  void set_excluded(Node& node, bool excluded);
  int num_placeable() const { return num_placeable_; }
  int num_members() const;
  int num_members(NodePhase phase) const {
    return members_in_phase_[static_cast<std::size_t>(phase)];
  }
  // Counts nodes of an earlier process that have not come back.
  int num_returning() const { return num_returning_; }
  std::size_t num_connected() const { return by_connection_.size(); }

  // ---- presence ----

  // Handles the return of a node. Returns why it can't go on and must be lost; empty: it goes on.
  [[nodiscard]] std::string come_back(Node& node, ConnectionId connection,
                                      const ConnectionFacts& facts, const AgentEnvelope& envelope,
                                      TimePoint now, Actions& out);
  void disconnect(Node& node, Actions& out);  // called only if it has a connection
  void closed(Node& node, TimePoint now);
  void heard(ConnectionId connection, TimePoint now);
  // Allows the node to be without a connection until then.
  void give_grace(Node& node, TimePoint until);
  // Returns when overdue() must be called next.
  Optional next_look() const { return next_look_; }
  std::vector<NodeId> overdue(TimePoint now);
  // Returns the reason for an overdue node: "nothing was heard of it for 5000 ms".
  std::string why_overdue(const Node& node, TimePoint now) const;
  // Sets fenced_until if the node was lost by silence: its workers may live until then.
  void fence(Node& node, bool by_silence, TimePoint now) const;
  // Returns whether the node's ddprun serves this rendezvous.
  bool serves_rendezvous(const Node& node) const;

  // ---- sending ----

  void push(Node& node, RendezvousMessage message, Actions& out);
  // Sends without a number: the message may be lost.
  void tell(const Node& node, RendezvousMessage message, Actions& out) const;
  void welcome(const Node& node, TimePoint now, Actions& out) const;
  void tell_spare(const Node& node, Actions& out) const;
  // Sends Waiting to all nodes while the job is forming: now, or once waiting_due() has come. From
  // now on each Waiting also has `hint`.
  void tell_waiting(TimePoint now, Actions& out, std::optional<std::string> hint = {});
  void nobody_waits();
  Optional waiting_due() const { return waiting_due_; }
  const std::string& waiting_hint() const { return waiting_hint_; }

 private:
  void set_connection(Node& node, std::optional<ConnectionId> connection);
  void index(const Node& node);
  void count(const Node& node, int by);  // -1 before a change, 1 after it
  // Called when the node has come on this connection.
  void connect(Node& node, ConnectionId connection, TimePoint now);
  bool is_second_look(TimePoint now);
  TimePoint without_rendezvous_until(const Node& node) const;

  const MachineOptions& options_;
  const JobState& job_;
  RosterState& mine_;
  int num_placeable_ = 0;
  std::array<int, kNumNodePhases> members_in_phase_{};
  int num_returning_ = 0;
  std::unordered_map<ConnectionId, NodeId> by_connection_;
  std::unordered_map<std::string, NodeId> by_session_;
  std::unordered_map<std::string, NodeId> by_instance_;
  TimePoint restored_at_{};  // if there was an earlier process
  Optional next_look_;       // no keep-alive or grace time ends before this
  Optional second_look_;     // when silent nodes are checked again
  Optional waiting_due_;     // when the next Waiting goes to all
  std::string waiting_hint_;
  TimePoint last_waiting_;
};

}  // namespace ddprun::membership
