// SPDX-License-Identifier: Apache-2.0
// The one thread that watches whether the other ranks live, greets TCP connections, and carries
// failures between nodes. It posts each failure to the node's memory, which ends every wait there.
//
// Inside a node it watches pidfds of all ranks, and the unix connections to the node's first rank.
// Between nodes the first ranks form a ring of control connections; a failure travels both ways
// round it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "common/endpoint.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/host/greeter.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

class PeerWatcher {
 public:
  // `greeter` may be null (one node). All references outlive the watcher.
  PeerWatcher(NodeGroup& group, std::unique_ptr<Greeter> greeter, ArrivalBook& arrivals);
  // Tells the other nodes that this rank leaves (unless something failed), then stops.
  ~PeerWatcher();

  // Adds something to watch. Any thread.
  void watch_connection(int local, UniqueFd unix_connection) {
    add(Kind::kUnix, group_.rank_of(local), std::move(unix_connection));
  }

  void watch_process(int local, int pid);

  void watch_next_node(int rank, UniqueFd control_connection) {
    add(Kind::kNextNode, rank, std::move(control_connection));
  }

  void watch_previous_node(int rank, UniqueFd control_connection) {
    add(Kind::kPreviousNode, rank, std::move(control_connection));
  }

  // Another node's first rank.
  struct Neighbour {
    int rank = 0;
    Endpoint endpoint;
  };
  // Sets the ranks that a member tells of a failure if its own node's first rank is gone. Call it
  // once, before the first wait between nodes.
  void set_neighbours(const Token& token, std::vector<Neighbour> neighbours);

  // Tells the other nodes of this node's failure, once. The first rank tells them itself; a member
  // wakes its first rank. Any thread; doesn't block, except up to 200 ms in a member whose first
  // rank is gone.
  void announce_failure();

  // Asks all nodes about a collective that this rank is in. nullopt: no answer came in half a
  // second (a first rank hangs or has gone), or something failed meanwhile. Any thread.
  std::optional<RollCallNote> call_roll(std::uint32_t sequence);

 private:
  enum class Kind { kUnix, kProcess, kNextNode, kPreviousNode, kNews };
  struct Watched {
    Watched(Kind what, int peer, UniqueFd descriptor)
        : kind(what), rank(peer), fd(std::move(descriptor)) {}

    const Kind kind;
    const int rank;  // the peer's
    const UniqueFd fd;
    std::size_t received = 0;  // from a node: bytes received of the message
    FailureRecord message{};
    // For a node: the peer said goodbye. The connection stays open, so that the peer doesn't see
    // this rank's end.
    bool parted = false;
    bool is_node() const { return kind == Kind::kNextNode || kind == Kind::kPreviousNode; }
    std::atomic<bool> done{false};  // nothing more to expect; the watcher thread erases it
  };

  void add(Kind kind, int rank, UniqueFd fd);
  void run();
  void handle(Watched& watched);
  void handle_control(Watched& watched);
  void peer_ended(int rank, std::string_view how);
  void handle_note(const FailureRecord& message);
  void send_to_nodes(const FailureRecord& message);
  static void send_to(const Watched& node, const FailureRecord& message);
  void call_roll_for_members();
  void pass_on(const RollCallNote& note);
  bool nudge_first_rank(char nudge);
  void tell_neighbours(const FailureRecord& failure);
  void wake();

  // Constant after construction.
  NodeGroup& group_;
  ArrivalBook& arrivals_;
  const UniqueFd wake_;  // eventfd

  // Used by the watcher thread only.
  const std::unique_ptr<Greeter> greeter_;

  std::mutex mutex_;
  // Guarded by mutex_. Only the watcher thread erases entries, so it reads them without the lock.
  std::vector<std::unique_ptr<Watched>> watched_;
  bool announced_ = false;
  bool stopping_ = false;
  Token token_{};
  std::vector<Neighbour> neighbours_;

  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace ddprun::host
