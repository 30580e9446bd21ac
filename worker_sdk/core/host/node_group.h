// SPDX-License-Identifier: Apache-2.0
// The ranks of one node around their shared memory: flags, waits that never last for ever, and the
// node's one failure. Waits run on the thread that executes the collective; post_failure and
// failed() on any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/host/call.h"
#include "worker_sdk/core/host/shared_memory.h"

namespace ddprun::host {

// A part of a list of elements, bytes or ranks.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// Returns part `index` of `count` elements cut into `parts`, on boundaries of `granule` elements.
// The last parts may be shorter or empty. The same on every rank.
inline Range slice_of(std::size_t count, std::size_t index, std::size_t parts,
                      std::size_t granule = 1) {
  const std::size_t granules = (count + granule - 1) / granule;
  const std::size_t share = (granules + parts - 1) / parts * granule;
  return {std::min(count, index * share), std::min(count, (index + 1) * share)};
}

// Nodes are numbered 0, 1, … in the order of their node ranks ("node index"); a node's ranks are
// its members in rank order ("local index"). Constant after construction.
class Topology {
 public:
  // `node_rank_of[r]` is the node rank of rank r; `rank` is the caller's.
  Topology(const std::vector<int>& node_rank_of, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_index_of_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_of_node_.size()); }
  int node_index() const { return node_index_of_[static_cast<std::size_t>(rank_)]; }
  int local_index() const { return local_index_of_[static_cast<std::size_t>(rank_)]; }
  int num_local() const { return static_cast<int>(local_ranks().size()); }
  const std::vector<int>& local_ranks() const { return ranks_of(node_index()); }
  const std::vector<int>& ranks_of(int node_index) const {
    return ranks_of_node_[static_cast<std::size_t>(node_index)];
  }
  int node_index_of(int rank) const { return node_index_of_[static_cast<std::size_t>(rank)]; }
  int local_index_of(int rank) const { return local_index_of_[static_cast<std::size_t>(rank)]; }
  bool same_node(int rank) const { return node_index_of(rank) == node_index(); }

  // The first ranks of each node carry the data between nodes, each its own share. Each node has as
  // many carriers as the smallest node has ranks.
  int num_carriers() const { return num_carriers_; }
  bool is_carrier() const { return local_index() < num_carriers_; }
  int max_ranks_per_node() const { return max_ranks_per_node_; }

  // Positions count ranks in node order: one rank's position, and those of a node's ranks.
  std::size_t position_of(int rank) const {
    return first_position_[static_cast<std::size_t>(node_index_of(rank))] +
           static_cast<std::size_t>(local_index_of(rank));
  }

  Range positions_of_node(int node_index) const {
    const std::size_t first = first_position_[static_cast<std::size_t>(node_index)];
    return {first, first + ranks_of(node_index).size()};
  }

 private:
  int rank_;
  int num_carriers_ = 0;
  int max_ranks_per_node_ = 0;
  std::vector<int> node_index_of_;
  std::vector<int> local_index_of_;
  std::vector<std::vector<int>> ranks_of_node_;
  std::vector<std::size_t> first_position_;
};

// The layout of the memory that the ranks of one node share (docs/host-communicator.md). Pure:
// structures and offsets.
inline constexpr std::uint64_t kNodeMemoryMagic = 0x33306d656d706464;  // "ddpmem03"

// Calls up to this size are one-shot: data and flag are written together.
inline constexpr std::size_t kOneShotBytes = std::size_t{32} << 10;
// Size of each rank's staging slot; single-node pipelines use two halves of a part of it.
inline constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
inline constexpr std::size_t kPipelinePieceBytes = std::size_t{512} << 10;
// Size of a node's sum of one piece: twice the staging slot, since 16-bit floats are summed as
// float32. A piece of 8-bit floats is half a slot.
inline constexpr std::size_t kRegionBytes = 2 * kStagingBytes;
inline constexpr std::size_t kMailboxSlotBytes = std::size_t{64} << 10;
inline constexpr std::uint32_t kMailboxSlots = 2;

// A counter that one rank raises and others wait for. Compared modulo 2^32.
struct alignas(64) Flag {
  std::atomic<std::uint32_t> value{0};  // also the futex word
  std::atomic<std::uint32_t> sleepers{0};
};

// kMismatch: ranks made different calls; `rank` is the one that saw it.
enum class FailureKind : std::uint32_t { kNone = 0, kRankLost = 1, kAborted = 2, kMismatch = 3 };

struct FailureRecord {
  FailureKind kind;
  std::int32_t rank;  // the rank that is lost or aborted
  char text[232];
};

// Asks all nodes who is missing from a collective, when a deadline has passed. The note goes once
// round the nodes' first ranks (PeerWatcher). Each adds its node's ranks that have not entered the
// call, or have made another one.
struct RollCallNote {
  static constexpr std::size_t kMaxNamed = 16;

  std::int32_t origin_node = 0;   // index of the node that asked
  std::int32_t origin_local = 0;  // local index of the rank that asked
  std::int32_t caller = 0;        // a rank in the collective, and its call
  CallHeader call;
  std::uint32_t num_absent = 0;
  std::int32_t absent[kMaxNamed] = {};  // the first kMaxNamed of them
  std::int32_t deviator = -1;  // a rank that made another call under this number; −1: none
  CallHeader deviation;
};
static_assert(sizeof(RollCallNote) <= sizeof(FailureRecord::text));

struct RollCallAnswer {
  std::atomic<std::uint32_t> wanted;    // the collective that this rank asks about, by sequence
  std::atomic<std::uint32_t> sequence;  // set to `wanted` when there is an answer; written last
  RollCallNote note;
};

struct PublishedCall {
  CallHeader header;
  std::int32_t buffer_id;  // arena buffer that holds the data; −1: none
  std::int32_t reserved;
  std::uint64_t offset;  // the data's offset in it
};

// Written by its rank, read by the others.
struct RankControl {
  Flag entered;  // collectives entered
  Flag copied;   // pieces put where others may read them
  Flag reduced;  // pieces whose results may be read, or whose input is no longer needed
  alignas(64) PublishedCall calls[2];   // by parity of `entered`
  std::atomic<std::uint32_t> left;      // set when it destroyed its communicator without a failure
  std::atomic<std::int32_t> waits_for;  // while it waits for a rank on another node: that rank + 1
  FailureRecord failure;                // written once, before NodeControl::failed_by
  RollCallAnswer roll_call;             // written by the watcher of the node's first rank
};

struct NodeControl {
  std::uint64_t magic;
  std::uint32_t num_local;
  alignas(64) std::atomic<std::uint32_t> failed_by;  // local index + 1 of the first to report
};

// One slot of a mailbox: a piece of a message from one rank to another.
struct MailboxSlot {
  std::uint64_t message_bytes;
  std::uint64_t piece_bytes;
  std::int32_t tag;
  DType dtype;
  alignas(64) std::byte data[kMailboxSlotBytes];
};

struct Mailbox {
  Flag filled;   // pieces that the sender has put
  Flag emptied;  // pieces that the receiver has taken
  MailboxSlot slots[kMailboxSlots];
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Offsets of the memory's parts for `num_local` ranks. The memory is sparse: unused parts take
// none.
class NodeMemoryLayout {
 public:
  explicit NodeMemoryLayout(int num_local) : num_local_(static_cast<std::size_t>(num_local)) {}

  std::size_t control() const { return 0; }
  std::size_t rank_control(int local) const { return kPage + kControlStride * index(local); }
  std::size_t one_shot(int local, std::uint32_t parity) const {
    return one_shot_begin() + (2 * index(local) + parity) * kOneShotBytes;
  }
  std::size_t staging(int local) const { return staging_begin() + index(local) * kStagingBytes; }
  std::size_t region(std::uint32_t parity) const { return region_begin() + parity * kRegionBytes; }
  std::size_t mailbox(int from, int to) const {
    return mailbox_begin() + (index(from) * num_local_ + index(to)) * kMailboxStride;
  }
  std::size_t total_bytes() const {
    return mailbox_begin() + num_local_ * num_local_ * kMailboxStride;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kControlStride = (sizeof(RankControl) + kPage - 1) / kPage * kPage;
  static constexpr std::size_t kMailboxStride = (sizeof(Mailbox) + kPage - 1) / kPage * kPage;

  static std::size_t index(int local) { return static_cast<std::size_t>(local); }
  std::size_t one_shot_begin() const { return kPage + kControlStride * num_local_; }
  std::size_t staging_begin() const { return one_shot_begin() + 2 * kOneShotBytes * num_local_; }
  std::size_t region_begin() const { return staging_begin() + kStagingBytes * num_local_; }
  std::size_t mailbox_begin() const { return region_begin() + 2 * kRegionBytes; }

  std::size_t num_local_;
};

class NodeGroup {
 public:
  using FlagMember = Flag RankControl::*;

  // `memory` has NodeMemoryLayout's size for this node.
  NodeGroup(Topology topology, SharedMapping memory)
      : topology_(std::move(topology)),
        layout_(topology_.num_local()),
        memory_(std::move(memory)) {}

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

  // Raises a flag that this rank owns, and wakes those that sleep on it. A rank that sees the new
  // value also sees everything written before.
  void publish(Flag& flag, std::uint32_t value);
  void publish(FlagMember which, std::uint32_t value) { publish(own_control().*which, value); }

  // Returns when the flag of `local` (second form: of every local rank) has reached `value`.
  // Progress comes before failure: what is already there is used even if the peer has gone. Throws
  // Error(kTimeout) naming who is behind, kPeerLost, kAborted.
  void wait_for(Flag& flag, std::uint32_t value, int local, const Call& call);
  void wait_for_all(FlagMember which, std::uint32_t value, const Call& call);
  // The same, but returns false if the value hasn't come after a short while.
  bool wait_briefly(Flag& flag, std::uint32_t value, int local, const Call& call);

  // Posts this node's failure; the first one wins. Wakes every sleeper. Any thread; never blocks
  // for long.
  void post_failure(FailureKind kind, int rank, std::string_view text);
  bool failed() const { return node_control().failed_by.load(std::memory_order_acquire) != 0; }
  // Call it only after failed().
  FailureRecord failure() const;
  // Throws the node's failure, if any, as this rank sees it.
  void throw_if_failed(const std::string& during);

  // Sets a call for the thread that posts or first throws a failure, so that other nodes hear of it
  // before this process can end. Set it before the first wait.
  void set_failure_listener(std::function<void()> listener) { listener_ = std::move(listener); }

  // Asks all nodes about a collective; nullopt: no answer. Set if there are several nodes. Takes up
  // to half a second. Called on the thread that times out.
  using RollCall = std::function<std::optional<RollCallNote>(std::uint32_t sequence)>;
  void set_roll_call(RollCall roll_call) { roll_call_ = std::move(roll_call); }

  // Ends a call whose deadline has passed. `supposed` says in words which rank this one waits for;
  // it is named if a roll-call finds none. Throws Error(kTimeout), Error(kProtocol) if the ranks
  // turn out to have made different calls, or the node's failure if one came meanwhile.
  [[noreturn]] void throw_timeout(const std::string& supposed, const Call& call,
                                  int supposed_rank = -1);

  // Returns the ranks that the last throw_timeout() found missing, at most the first 16. Any
  // thread.
  std::vector<int> absent() const {
    const std::lock_guard lock(absent_mutex_);
    return absent_;
  }

  // Says that this rank leaves without having failed.
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

  std::mutex post_mutex_;  // for own failure record
  bool posted_ = false;    // guarded by post_mutex_

  mutable std::mutex absent_mutex_;
  std::vector<int> absent_;  // guarded by absent_mutex_
};

}  // namespace ddprun::host
