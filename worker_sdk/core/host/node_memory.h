// SPDX-License-Identifier: Apache-2.0
// What lies where in the memory that the ranks of one node share (docs/host-communicator.md).
// Pure: structures and offsets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "worker_sdk/core/host/call.h"

namespace ddprun::host {

inline constexpr std::uint64_t kNodeMemoryMagic = 0x33306d656d706464;  // "ddpmem03"

// Calls up to this size are one-shot: data and flag in one go.
inline constexpr std::size_t kOneShotBytes = std::size_t{32} << 10;
// Each rank's staging slot; single-node pipelines use two halves of a part of it.
inline constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
inline constexpr std::size_t kPipelinePieceBytes = std::size_t{512} << 10;
// A node's sum of one piece; twice the staging slot since 16-bit floats are summed as float32.
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
  std::int32_t rank;  // lost, or the one that aborted
  char text[232];
};

// Of all nodes (roll_call.h): who has not entered a collective, or has entered another one.
struct RollCallNote {
  static constexpr std::size_t kMaxNamed = 16;

  std::int32_t origin_node = 0;   // node index that asked
  std::int32_t origin_local = 0;  // and local index there
  std::int32_t caller = 0;        // a rank in the collective, and what it called
  CallHeader call;
  std::uint32_t num_absent = 0;
  std::int32_t absent[kMaxNamed] = {};  // the first of them
  std::int32_t deviator = -1;           // a rank that called something else under that number
  CallHeader deviation;
};
static_assert(sizeof(RollCallNote) <= sizeof(FailureRecord::text));

struct RollCallAnswer {
  std::atomic<std::uint32_t> wanted;    // sequence of the collective that this rank asks about
  std::atomic<std::uint32_t> sequence;  // the same when there is an answer; written last
  RollCallNote note;
};

struct PublishedCall {
  CallHeader header;
  std::int32_t buffer_id;  // arena buffer that the data lies in; −1: none
  std::int32_t reserved;
  std::uint64_t offset;  // of the data in it
};

// Written by its rank, read by the others.
struct RankControl {
  Flag entered;  // collectives entered
  Flag copied;   // pieces put where others may read them
  Flag reduced;  // pieces whose results may be read, or whose input is no longer needed
  alignas(64) PublishedCall calls[2];   // by parity of `entered`
  std::atomic<std::uint32_t> left;      // destroyed its communicator: no failure
  std::atomic<std::int32_t> waits_for;  // rank on another node + 1, while waiting for it
  FailureRecord failure;                // written once, before NodeControl::failed_by
  RollCallAnswer roll_call;             // by the watcher of the node's first rank
};

struct NodeControl {
  std::uint64_t magic;
  std::uint32_t num_local;
  alignas(64) std::atomic<std::uint32_t> failed_by;  // local index + 1 of the first to report
};

// Slot of a mailbox: one piece of a message from one rank to another.
struct MailboxSlot {
  std::uint64_t message_bytes;
  std::uint64_t piece_bytes;
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

// Offsets of the parts for `num_local` ranks. Sparse: what is not used takes no memory.
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

}  // namespace ddprun::host
