// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new communicator meet. They exchange records through the store. Then a node's
// first rank hands out the node's memory over unix sockets. It runs once, in the constructor.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "rendezvous/store/store.h"
#include "worker_sdk/core/host/greeter.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

// A rank's announcement to the others.
struct PeerRecord {
  int node_rank = 0;
  std::string unix_name;  // abstract unix socket
  Endpoint endpoint;      // TCP; port 0: none
  Token token{};          // rank 0's is the one used
  int pid = 0;            // 0: not known
  std::uint64_t pid_namespace = 0;

  std::string encode() const;
  // Throws Error(kProtocol).
  static PeerRecord decode(const std::string& text, int rank);
};

// Returns this process' pid namespace, or 0 if not known. Pids of another namespace mean nothing
// here.
std::uint64_t pid_namespace();
// Returns a pidfd of the process. Empty: the kernel gives none. ESRCH in errno: there is no such
// process.
UniqueFd open_pidfd(int pid);

// Notices the end of other ranks while a communicator is made, before its PeerWatcher can. It
// watches the processes of its node by their pids, and other nodes by a note in the store. The note
// also makes all ranks report the same cause. Used on the caller's thread only.
class StartWatch {
 public:
  // `store` outlives the watch.
  StartWatch(store::Store& store, const HostCommunicatorOptions& options)
      : store_(store), rank_(options.rank), key_(options.key_prefix + "host/failure") {}

  // Starts to watch the processes of the caller's node. Throws as look() does.
  void watch_node(const std::vector<PeerRecord>& records, const Topology& topology);
  // A failure that is found from now on ends the waits of the whole node. `group` outlives the
  // watch.
  void set_group(NodeGroup& group) { group_ = &group; }

  // Throws Error(kPeerLost) naming the rank whose end is known.
  void look();
  // poll(2) on `fd` until the deadline; false: it passed. Throws as look() does.
  bool wait_ready(int fd, short events, Deadline deadline);
  // Poll these together with the caller's own, and call look() at next_look() at the latest.
  const std::vector<pollfd>& polls() const { return polls_; }

  Deadline next_look(Deadline deadline) const {
    return asks_store_ ? Deadline(std::min(deadline.at(), next_ask_)) : deadline;
  }

  // Called when the connection to `rank` ended or was refused: looks for a better reason, then
  // throws.
  [[noreturn]] void connection_ended(int rank, const std::string& how);

  // Called when the start has failed. Tells the others, and throws the cause that the first failed
  // rank has told. If `error` is not about a lost rank, it throws `error` itself.
  [[noreturn]] void end_with(const Error& error);

 private:
  [[noreturn]] void end_by(FailureKind kind, int rank, const std::string& how);
  void ask_store();

  // Constant after construction.
  store::Store& store_;
  const int rank_;
  const std::string key_;

  NodeGroup* group_ = nullptr;
  std::vector<UniqueFd> processes_;
  std::vector<pollfd> polls_;  // of processes_
  std::vector<int> rank_of_;   // the rank of each process
  // True on a node's first rank if there are several nodes: the node's others learn from it.
  bool asks_store_ = false;
  Clock::time_point next_ask_{};
  std::optional<FailureRecord> found_;
};

// Returns a listening abstract unix socket with a random name, which vanishes with the descriptor.
UniqueFd listen_on_unix(std::string* name);

// Publishes `own` and returns every rank's record. Throws Error(kTimeout) naming the ranks that did
// not come; to find these out it takes up to two seconds more.
std::vector<PeerRecord> exchange_records(store::Store& store,
                                         const HostCommunicatorOptions& options,
                                         const PeerRecord& own, Deadline deadline);

// A rank's unix connections inside its node. A member has one of each kind, to the first rank. The
// first rank has one of each kind to every local index (its own entry is empty).
struct NodeConnections {
  std::vector<UniqueFd> watch;
  std::vector<UniqueFd> memory;
};

// Called by the first rank: waits for every member. Throws Error(kTimeout) naming the missing ones,
// and what `watch` knows.
NodeConnections accept_members(UniqueFd listener, const Token& token, const Topology& topology,
                               StartWatch& watch, Deadline deadline);
// Called by a member: connects to the first rank. Throws Error(kTimeout), and what `watch` knows.
NodeConnections connect_to_first(const std::string& unix_name, const Token& token,
                                 const Topology& topology, StartWatch& watch, Deadline deadline);

// Hand memory to one member, and take it from the first rank. Throw Error(kPeerLost) if the other
// side is gone, Error(kTimeout).
void hand_memory(int connection, int memory_fd, int rank, Deadline deadline);
UniqueFd receive_memory(const NodeConnections& connections, const Topology& topology,
                        Deadline deadline);

}  // namespace ddprun::host
