// SPDX-License-Identifier: Apache-2.0
// The queue of gangs: who comes, goes, submits and ends in, what is to be said to the nodes out.
// The rules are in docs/nodes.md. Pure: no I/O, clock or thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log_level.h"
#include "common/variant.h"
#include "rendezvous/gangs/gang.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/journal/row.h"

namespace ddprun::gangs {

using ConnectionId = std::uint64_t;

struct GangTime {
  Clock::time_point now;
  std::int64_t wall_ms = 0;  // since 1970, for people
};

namespace gang_action {
struct Tell {
  ConnectionId connection = 0;
  QueueMessage message;
};
struct Close {  // after what was told
  ConnectionId connection = 0;
};
struct Changed {  // whoever waits for news of it
  std::string gang;
};
struct Log {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
}  // namespace gang_action

using GangAction = variants::variant<gang_action::Tell, gang_action::Close, gang_action::Changed,
                                     gang_action::Log>;
using GangActions = std::vector<GangAction>;

struct GangQueueOptions {
  std::chrono::milliseconds node_grace{60'000};  // connection lost → node lost
  std::chrono::milliseconds lonely{60'000};  // fewer than MIN parts are left → the others stop
  std::chrono::milliseconds keep_finished{3'600'000};
  std::chrono::milliseconds silence{5'000};  // as the agents are told
  // The bounds of gangs that have not ended: all users', and one user's. So no user keeps others
  // out.
  std::size_t max_gangs = 2'000, max_gangs_of_owner = 1'000;
  std::size_t max_bytes = std::size_t{64} << 20, max_bytes_of_owner = std::size_t{32} << 20;
  std::size_t max_ended = 1'000;
};

class GangQueue {
 public:
  // A gang and its place in the queue.
  struct Gang {
    std::uint64_t number = 0;
    std::optional<GangSpec> spec;  // until it has ended
    GangState state;
    std::uint64_t changes = 1;  // counts them
    std::optional<Clock::time_point> lonely_until, forget_at;
    bool is_new = true, is_changed = true;  // against its rows
  };

  // An agent, of one user on one node.
  struct Node {
    std::string name, owner, user;
    int slots = 0;
    std::optional<ConnectionId> connection;  // nullopt: it is away, until away_until
    Clock::time_point away_until{};
    std::string instance, version, address;
    std::map<std::string, int> strays;  // runs there and shall not: gang → slots
    bool is_changed = true;             // against its row
  };
  using NodeKey = std::pair<std::string, std::string>;  // name, owner

  enum class Verdict {
    kTaken,
    kKnown,  // it is there already, the same one
    kOther,  // its id is another one's
    kFull,
    kFullOfOwner,
  };

  explicit GangQueue(GangQueueOptions options) : options_(std::move(options)) {}

  // Goes on with what a journal kept. Before all else.
  void restore(const journal::Rows& rows, GangTime time, GangActions& out);

  // `spec` has been checked. `owner`: of which agents' it is.
  Verdict submit(GangSpec spec, const std::string& owner, GangTime time, GangActions& out);
  // False: there is none. `by`: for people.
  bool cancel(std::string_view id, const std::string& by, GangTime time, GangActions& out);

  // `hello` has been checked.
  void node_came(ConnectionId connection, const NodeHello& hello, const std::string& owner,
                 const std::string& address, GangTime time, GangActions& out);
  void node_gone(ConnectionId connection, GangTime time, GangActions& out);
  void part_started(ConnectionId connection, const std::string& gang, GangTime time,
                    GangActions& out);
  void part_ended(ConnectionId connection, const PartEnded& ended, GangTime time, GangActions& out);
  void tick(GangTime time, GangActions& out);
  std::optional<Clock::time_point> next_deadline() const;

  // The rows that differ from those that were taken last.
  journal::Batch take_changes();

  const std::map<std::uint64_t, Gang>& gangs() const { return gangs_; }  // oldest first
  const std::map<NodeKey, Node>& nodes() const { return nodes_; }
  const Gang* find(std::string_view id) const;
  const Node* node_of(ConnectionId connection) const;
  // Slots that gangs of all users take, by the names of nodes.
  std::map<std::string, std::int64_t> used_slots() const;
  // Queued gangs that came before it.
  std::size_t num_before(const Gang& gang) const;
  // The reason why a queued gang waits, for people.
  std::string waits_for(const Gang& gang) const;

 private:
  Gang* find_gang(std::string_view id);
  bool may_add(const std::string& owner, std::size_t bytes) const;
  static GangPart* part_at(Gang& gang, const Node& node);
  Node* at_connection(ConnectionId connection);

  void meet_parts(Node& node, const NodeHello& hello, GangTime time, GangActions& out);
  void tell(const Node& node, QueueMessage message, GangActions& out);
  void tell_start(const Gang& gang, const GangPart& part, const Node& node, GangActions& out);
  void begin_gangs(GangTime time, GangActions& out);
  void begin(Gang& gang, const std::vector<const Node*>& nodes, GangTime time, GangActions& out);
  void end_part(Gang& gang, GangPart& part, int exit_code, const std::string& reason, GangTime time,
                GangActions& out);
  void lose_part(Gang& gang, GangPart& part, const std::string& why, GangTime time,
                 GangActions& out);
  void lose_node(const NodeKey& key, GangTime time, GangActions& out);
  void after_part(Gang& gang, bool could_not_start, GangTime time, GangActions& out);
  void stop(Gang& gang, const std::string& why, GangActions& out);
  void end(Gang& gang, int exit_code, const std::string& reason, GangTime time, GangActions& out);
  void drop_old(GangTime time);
  void erase(std::map<std::uint64_t, Gang>::iterator gang);
  void changed(Gang& gang, GangActions& out);
  void restore_gang(std::uint64_t number, const std::string* spec, const std::string& state,
                    GangTime time, GangActions& out);

  GangQueueOptions options_;
  std::map<std::uint64_t, Gang> gangs_;                        // by number: the order of submission
  std::map<std::string, std::uint64_t, std::less<>> numbers_;  // by id
  std::map<NodeKey, Node> nodes_;
  std::map<ConnectionId, NodeKey> connections_;
  std::uint64_t next_number_ = 1;
  std::size_t num_live_ = 0;
  std::size_t live_bytes_ = 0;
  journal::Batch erased_;
};

// Finds where queued gangs can begin (docs/nodes.md, "The rules of the queue"). A node is fitting
// for a gang if it would do, were nothing running. It has room if it does now. It is held if a gang
// that came earlier waits for it: no later one gets it. GangPlacing decides nothing else, and
// changes no gang.
class GangPlacing {
 public:
  using Node = GangQueue::Node;

  using Slots = std::map<std::string, std::int64_t>;  // by the names of nodes

  // Both outlive it. They change meanwhile only in that gangs begin where place() says.
  GangPlacing(const std::map<GangQueue::NodeKey, Node>& nodes,
              const std::map<std::uint64_t, GangQueue::Gang>& gangs)
      : nodes_(nodes), gangs_(gangs) {}

  // Taken of all nodes: by gangs of all users, and by what runs there and shall not.
  Slots used_slots() const;

  // The fitting nodes, by name; those that are away, too.
  std::vector<const Node*> fitting(const GangState& gang) const;

  // Asked for each queued gang once, in the order of submission. Returns the nodes to begin it on,
  // the first ones by name; `nullopt`: it waits. If enough nodes are fitting, it holds them from
  // now on. The parts of all gangs are counted at the first call. A later one walks the nodes of
  // its owner at most, so that a full queue on a thousand nodes costs milliseconds.
  std::optional<std::vector<const Node*>> place(const GangState& gang);

 private:
  struct Room {  // on one machine, which agents of several users share
    std::int64_t used = 0;
    bool is_held = false;
  };
  struct Place {
    const Node* node = nullptr;
    Room* room = nullptr;
    bool has_room(const GangState& gang) const;
  };
  struct Owner {
    std::vector<Place> places;
    // All of its nodes that have so many slots are held.
    int held_from = kMaxSlots + 1;
  };
  using Owners = std::map<std::string, Owner, std::less<>>;
  Owners& owners();

  const std::map<GangQueue::NodeKey, Node>& nodes_;
  const std::map<std::uint64_t, GangQueue::Gang>& gangs_;
  std::map<std::string, Room, std::less<>> rooms_;  // by the names of nodes
  std::optional<Owners> owners_;                    // once it was asked for
};

}  // namespace ddprun::gangs
