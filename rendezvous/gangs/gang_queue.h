// SPDX-License-Identifier: Apache-2.0
// The queue of gangs. It takes events of nodes, gangs and users, and returns messages for nodes.
// docs/nodes.md has the rules. Pure: no I/O, clock or thread.
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
  std::int64_t wall_ms = 0;  // Unix time in ms, for people
};

namespace gang_action {
struct Tell {
  ConnectionId connection = 0;
  QueueMessage message;
};
struct Close {  // after earlier messages
  ConnectionId connection = 0;
};
struct Changed {  // for those who wait for the gang's news
  std::string gang;
};
struct Log {
  LogLevel level = LogLevel::kInfo;
  std::string text;
  bool is_about_stranger = false;  // log_about_peer() is for it
};
}  // namespace gang_action

using GangAction = variants::variant<gang_action::Tell, gang_action::Close, gang_action::Changed,
                                     gang_action::Log>;
using GangActions = std::vector<GangAction>;

struct GangQueueOptions {
  std::chrono::milliseconds node_grace{60'000};  // from connection lost to node lost
  std::chrono::milliseconds lonely{60'000};  // with fewer than MIN parts the others stop after this
  std::chrono::milliseconds keep_finished{3'600'000};
  std::chrono::milliseconds silence{5'000};  // sent to the agents
  // The limits of gangs that have not ended: of all users, and of one user. So no user can fill the
  // queue alone.
  std::size_t max_gangs = 2'000, max_gangs_of_owner = 1'000;
  std::size_t max_bytes = std::size_t{64} << 20, max_bytes_of_owner = std::size_t{32} << 20;
  std::size_t max_ended = 1'000;
};

class GangQueue {
 public:
  // A gang and its place in the queue.
  struct Gang {
    std::uint64_t number = 0;
    std::optional<GangSpec> spec;  // nullopt: it has ended
    GangState state;
    std::uint64_t changes = 1;  // the number of changes
    std::optional<Clock::time_point> lonely_until, forget_at;
    bool is_new = true, is_changed = true;  // compared with its rows
  };

  // An agent of one user on one node.
  struct Node {
    std::string name, owner, user;
    int slots = 0;
    std::optional<ConnectionId> connection;  // nullopt: away; lost at away_until
    Clock::time_point away_until{};
    std::string instance, version, address;
    std::map<std::string, int> strays;  // gangs that must not run there: gang → slots
    bool is_changed = true;             // compared with its row
  };
  using NodeKey = std::pair<std::string, std::string>;  // name, owner

  enum class Verdict {
    kTaken,
    kKnown,  // the same gang was submitted before
    kOther,  // another gang has its id
    kFull,
    kFullOfOwner,
  };

  explicit GangQueue(GangQueueOptions options) : options_(std::move(options)) {}

  // Goes on with the journal's rows. Called before any other function.
  void restore(const journal::Rows& rows, GangTime time, GangActions& out);

  // Adds a gang. The caller has checked `spec`. `owner` is the owner of the agents that it may use.
  Verdict submit(GangSpec spec, const std::string& owner, GangTime time, GangActions& out);
  // Returns false if there is no such gang. `by` tells people who cancelled it.
  bool cancel(std::string_view id, const std::string& by, GangTime time, GangActions& out);

  // The caller has checked `hello`.
  void node_came(ConnectionId connection, const NodeHello& hello, const std::string& owner,
                 const std::string& address, GangTime time, GangActions& out);
  void node_gone(ConnectionId connection, GangTime time, GangActions& out);
  void part_started(ConnectionId connection, const std::string& gang, GangTime time,
                    GangActions& out);
  void part_ended(ConnectionId connection, const PartEnded& ended, GangTime time, GangActions& out);
  void tick(GangTime time, GangActions& out);
  std::optional<Clock::time_point> next_deadline() const;

  // Returns the rows that changed since the last call.
  journal::Batch take_changes();

  const std::map<std::uint64_t, Gang>& gangs() const { return gangs_; }  // oldest first
  const std::map<NodeKey, Node>& nodes() const { return nodes_; }
  const Gang* find(std::string_view id) const;
  // Returns the slots that gangs of all users take, by the names of nodes.
  std::map<std::string, std::int64_t> used_slots() const;
  // Counts the queued gangs that came before it.
  std::size_t num_before(const Gang& gang) const;
  // Returns the reason why a queued gang waits, for people.
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
  std::map<std::uint64_t, Gang> gangs_;                        // by number, in order of submission
  std::map<std::string, std::uint64_t, std::less<>> numbers_;  // by id
  std::map<NodeKey, Node> nodes_;
  std::map<ConnectionId, NodeKey> connections_;
  std::uint64_t next_number_ = 1;
  std::size_t num_live_ = 0;
  std::size_t live_bytes_ = 0;
  journal::Batch erased_;
};

// Finds the nodes on which queued gangs can begin (docs/nodes.md, "The rules of the queue"). A node
// is fitting for a gang if it could run it when free. It has room if it can run it now. It is held
// if an earlier gang waits for it: no later gang gets it. GangPlacing decides nothing else, and
// changes no gang.
class GangPlacing {
 public:
  using Node = GangQueue::Node;

  using Slots = std::map<std::string, std::int64_t>;  // by nodes' names

  // Both must outlive this. Meanwhile they change only by gangs that begin on the nodes of place().
  GangPlacing(const std::map<GangQueue::NodeKey, Node>& nodes,
              const std::map<std::uint64_t, GangQueue::Gang>& gangs)
      : nodes_(nodes), gangs_(gangs) {}

  // Returns the slots in use, by gangs of all users and by gangs that must not run there.
  Slots used_slots() const;

  // Returns the fitting nodes by name, also those that are away.
  std::vector<const Node*> fitting(const GangState& gang) const;

  // Called once for each queued gang, in the order of submission. Returns the nodes to begin it on,
  // the first ones by name; `nullopt`: it waits. A waiting gang holds its fitting nodes from now on
  // if there are enough. The first call counts the parts of all gangs. A later call visits at most
  // the owner's nodes, so that a full queue on a thousand nodes takes milliseconds.
  std::optional<std::vector<const Node*>> place(const GangState& gang);

 private:
  struct Room {  // of one machine, which several users' agents may share
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
    // All of its nodes with at least so many slots are held.
    int held_from = kMaxSlots + 1;
  };
  using Owners = std::map<std::string, Owner, std::less<>>;
  Owners& owners();

  const std::map<GangQueue::NodeKey, Node>& nodes_;
  const std::map<std::uint64_t, GangQueue::Gang>& gangs_;
  std::map<std::string, Room, std::less<>> rooms_;  // by nodes' names
  std::optional<Owners> owners_;                    // set by the first owners()
};

}  // namespace ddprun::gangs
