// SPDX-License-Identifier: Apache-2.0
// The ranks of one node around their shared memory: flags, waits that never last for ever, and the
// node's one failure. Waits run on the thread that executes the collective; post_failure and
// failed() on any thread.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/host/call.h"
#include "worker_sdk/core/host/node_memory.h"
#include "worker_sdk/core/host/shared_memory.h"
#include "worker_sdk/core/host/topology.h"

namespace ddprun::host {

class NodeGroup {
 public:
  using FlagMember = Flag RankControl::*;

  // `memory` has NodeMemoryLayout's size for this node.
  NodeGroup(Topology topology, SharedMapping memory);
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  const Topology& topology() const { return topology_; }
  int num_local() const { return topology_.num_local(); }
  int local_index() const { return topology_.local_index(); }
  int rank_of(int local) const { return topology_.local_ranks()[static_cast<std::size_t>(local)]; }

  NodeControl& node_control() { return *at<NodeControl>(layout_.control()); }
  const NodeControl& node_control() const { return *at<NodeControl>(layout_.control()); }
  RankControl& control(int local) { return *at<RankControl>(layout_.rank_control(local)); }
  const RankControl& control(int local) const {
    return *at<RankControl>(layout_.rank_control(local));
  }
  RankControl& own_control() { return control(local_index()); }
  std::byte* one_shot(int local, std::uint32_t parity) {
    return memory_.data() + layout_.one_shot(local, parity);
  }
  std::byte* staging(int local) { return memory_.data() + layout_.staging(local); }
  std::byte* region(std::uint32_t parity) { return memory_.data() + layout_.region(parity); }
  Mailbox& mailbox(int from, int to) { return *at<Mailbox>(layout_.mailbox(from, to)); }

  // Raises a flag that this rank owns, and wakes who sleeps on it. Everything written before is
  // visible to whoever sees the new value.
  void publish(Flag& flag, std::uint32_t value);
  void publish(FlagMember which, std::uint32_t value) { publish(own_control().*which, value); }

  // Returns when the flag of `local` (every local rank in the second form) has reached `value`.
  // Progress comes before failure: what is already there is used even when the peer has gone.
  // Throws Error(kTimeout) naming who is behind, kPeerLost, kAborted.
  void wait_for(Flag& flag, std::uint32_t value, int local, const Call& call);
  void wait_for_all(FlagMember which, std::uint32_t value, const Call& call);

  // First one wins on this node; wakes every sleeper. Any thread; never blocks for long.
  void post_failure(FailureKind kind, int rank, std::string_view text);
  bool failed() const { return node_control().failed_by.load(std::memory_order_acquire) != 0; }
  // Only after failed().
  FailureRecord failure() const;
  // Throws the node's failure, if there is one, as this rank sees it.
  void throw_if_failed(const std::string& during);

  // Called on the thread that posts or first throws a failure, so that other nodes hear of it
  // before this process can end. Set before the first wait.
  void set_failure_listener(std::function<void()> listener) { listener_ = std::move(listener); }

  // Set where there are several nodes: asks all of them about a collective; nullopt where nobody
  // knows. Takes up to half a second. Called on the thread that times out.
  using RollCall = std::function<std::optional<RollCallNote>(std::uint32_t sequence)>;
  void set_roll_call(RollCall roll_call) { roll_call_ = std::move(roll_call); }

  // Ends a call whose deadline has passed. `supposed` is whom this rank waits for, in words, and
  // is named where a roll-call finds nobody. Throws Error(kTimeout), Error(kProtocol) where the
  // ranks turn out to have made different calls, or the node's failure where one came meanwhile.
  [[noreturn]] void throw_timeout(const std::string& supposed, const Call& call,
                                  int supposed_rank = -1);

  // Ranks that the last throw_timeout() found missing; of many the first 16. Any thread.
  std::vector<int> absent() const;

  // Says that this rank goes without having failed.
  void leave();

 private:
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  bool wait_a_while(Flag& flag, std::uint32_t value, int local, const Call& call);
  void sleep_on(Flag& flag, std::uint32_t seen, Clock::duration at_most);
  void wake_everybody();
  std::string who_is_behind(int waiting_for);
  void set_absent(std::vector<int> ranks);

  // Constant after construction.
  const Topology topology_;
  const NodeMemoryLayout layout_;
  const SharedMapping memory_;
  std::function<void()> listener_;
  RollCall roll_call_;

  std::mutex post_mutex_;  // own failure record
  bool posted_ = false;    // guarded by post_mutex_

  mutable std::mutex absent_mutex_;
  std::vector<int> absent_;  // guarded by absent_mutex_
};

}  // namespace ddprun::host
