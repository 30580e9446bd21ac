// SPDX-License-Identifier: Apache-2.0
// What a rank knows of the others' ends while a communicator is made, before its PeerWatcher can:
// the processes of its node by their pids, other nodes by a note in the store, which also makes
// all ranks tell of the same cause. Caller's thread only.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "rendezvous/store/store.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

struct PeerRecord;

// Of this process; pids of another namespace mean nothing here. 0: not known.
std::uint64_t pid_namespace();
// Empty where the kernel has none for it; ESRCH in errno: there is no such process.
UniqueFd open_pidfd(int pid);

class StartWatch {
 public:
  // `store` outlives the watch.
  StartWatch(store::Store& store, const HostCommunicatorOptions& options);

  // The processes of the caller's node. Throws as look() does.
  void watch_node(const std::vector<PeerRecord>& records, const Topology& topology);
  // From now on what is found ends the waits of the whole node. `group` outlives the watch.
  void set_group(NodeGroup& group) { group_ = &group; }

  // Throws Error(kPeerLost) naming the rank whose end is known.
  void look();
  // poll(2) on `fd` until the deadline; false: it passed. Throws as look() does.
  bool wait_ready(int fd, short events, Deadline deadline);
  // What to poll for beside one's own, and when to look() at the latest.
  const std::vector<pollfd>& polls() const { return polls_; }
  Deadline next_look(Deadline deadline) const;

  // The connection to `rank` ended or was refused: looks for a better reason first.
  [[noreturn]] void connection_ended(int rank, const std::string& how);

  // The start has failed. Tells the others, and throws the cause that the first rank to fail told;
  // `error` itself where it is of another kind than a lost rank.
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
  std::vector<int> rank_of_;   // likewise
  // Several nodes, first rank: the others learn of its findings from it.
  bool asks_store_ = false;
  Clock::time_point next_ask_{};
  std::optional<FailureRecord> found_;
};

}  // namespace ddprun::host
