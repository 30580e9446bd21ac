// SPDX-License-Identifier: Apache-2.0
// One node of a job, as the rendezvous knows it, and the table of them. Plain data. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/channel.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::membership {

using NodeId = std::uint64_t;  // counts joins: a smaller one joined earlier

enum class NodePhase {
  kIdle,       // no process of any round: can be placed, or is a spare
  kStarting,   // StartRound was sent
  kRunning,    // all its workers run
  kSucceeded,  // all its workers exited with 0
  kStopping,   // StopRound was sent
};

inline constexpr std::size_t kNumNodePhases = 5;

struct Node {
  NodeId id = 0;
  Join join;
  ConnectionFacts facts;
  std::string key;  // node_key() of when it first joined
  std::string session;
  std::optional<ConnectionId> connection;
  Channel<RendezvousMessage> channel;
  NodePhase phase = NodePhase::kIdle;
  std::optional<int> node_rank;  // in the live or last round; spares have none
  Clock::time_point last_heard{};
  std::optional<Clock::time_point> grace_until;   // set while there is no connection
  std::optional<Clock::time_point> fenced_until;  // it was cut off: its workers live until then
  bool returning = false;  // known from an earlier rendezvous process, not heard of since
  bool stepped = false;    // its workers have finished a step of the live round
  bool emptied = false;    // kSucceeded, and said that no process of the round is left
  bool warned = false;     // it is about to be taken away
  bool departed = false;   // kSucceeded: its workers left before their work was done
  bool preempted = false;  // excluded, for now only: it was warned
  bool excluded = false;   // its key is in JobState::excluded: goes when the round is stopped
  bool left = false;       // excluded, and ended by its user while its workers were being stopped
  int kept = 0;      // kStopping: so many of its workers wait for a round that goes on in place
  int in_place = 0;  // of its workers, that are in the live round; 0: all that it starts
  // In the live round, as it said last.
  std::vector<RankStepTime> step_times;
  std::optional<TrainingStatus> training;
  std::optional<SeenNodeReport> monitor;  // in any round, likewise
  bool gone = false;  // finished with success and lost afterwards: counts, but can't be placed
};

inline bool is_member(const Node& node) { return node.node_rank.has_value(); }
inline bool is_placeable(const Node& node) {
  return node.phase == NodePhase::kIdle && node.connection.has_value() && !node.gone &&
         !node.excluded;
}

// Of its workers, in the live round or, before that begins, in the next one.
inline int num_workers(const Node& node) {
  return node.in_place > 0 ? node.in_place : node.join.num_workers;
}

// The same machine when its agent comes again: host name and address.
std::string node_key(const Join& join, const ConnectionFacts& facts);

const char* to_string(NodePhase phase);

// "node 1 (gpu07, 10.0.0.7)"; a node that has no rank: "gpu07 (10.0.0.7)".
std::string describe(const Node& node);

// A job's nodes in the order in which they joined. Who wants to change one asks for it with
// edit(): so what must be written to the journal is known without anybody's thinking of it.
class NodeTable {
 public:
  using Map = std::map<NodeId, Node>;

  Map::const_iterator begin() const { return nodes_.begin(); }
  Map::const_iterator end() const { return nodes_.end(); }
  Map::const_iterator find(NodeId id) const { return nodes_.find(id); }
  const Node& at(NodeId id) const { return nodes_.at(id); }
  std::size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }

  // The reference holds until erase(id).
  Node& edit(NodeId id) {
    mark(id);
    return nodes_.at(id);
  }
  Node& add(NodeId id) {
    nodes_[id].id = id;
    return edit(id);
  }
  void erase(NodeId id) {
    mark(id);
    nodes_.erase(id);
  }
  // Likewise, for what is not worth a line of the journal: no field that is kept may change.
  Node& edit_unkept(NodeId id) { return nodes_.at(id); }
  // A sign of life, which is not either.
  void heard(NodeId id, Clock::time_point now) { nodes_.at(id).last_heard = now; }
  template <typename Change>
  void edit_each(Change&& change) {
    for (auto& [id, node] : nodes_) {
      mark(id);
      change(node);
    }
  }

  // Whether take_changed() will be called; else nothing is remembered for it.
  void remember_changes(bool on) { remembers_ = on; }
  // Added, changed or erased since the last call.
  std::set<NodeId> take_changed() { return std::exchange(changed_, {}); }

 private:
  Map nodes_;
  void mark(NodeId id) {
    if (remembers_) changed_.insert(id);
  }

  bool remembers_ = true;
  std::set<NodeId> changed_;
};

}  // namespace ddprun::membership
