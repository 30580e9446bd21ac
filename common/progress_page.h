// SPDX-License-Identifier: Apache-2.0
// The page of memory that a worker and its agent share: how far the worker is, and whether it shall
// stop. Layout and meaning: docs/internals/agent-socket.md. Every field is one 64-bit little-endian
// word at a fixed offset, so that a program in any language can map it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ddprun {

inline constexpr std::size_t kProgressPageBytes = 4096;
inline constexpr std::uint64_t kProgressMagic = 0x47504e5552504444;  // "DDPRUNPG"
inline constexpr std::uint64_t kProgressVersion = 1;
inline constexpr std::size_t kMaxAgentLineBytes = 4096;  // of the socket beside it, with its '\n'

enum class ProgressPhase : std::uint64_t {
  kStartUp = 0,
  kTrain = 1,
  kCheckpoint = 2,
  kEvaluate = 3,
  kTearDown = 4,
};

// Numbers that programs of any language know: none changes.
enum class CollectiveKind : std::uint8_t {
  kNone = 0,
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kBarrier = 5,
  kAllocate = 6,
  kSend = 7,
  kRecv = 8,
  kReduce = 9,
  kLast = kReduce,
};
// By number, as messages name them.
inline constexpr std::array kCollectiveNames{
    "operation", "all_reduce", "broadcast", "all_gather", "reduce_scatter",
    "barrier",   "allocate",   "send",      "recv",       "reduce"};
static_assert(kCollectiveNames.size() == static_cast<std::size_t>(CollectiveKind::kLast) + 1);

enum class StopRequest : std::uint64_t { kNone = 0, kPreemption = 1 };

// The operation a communicator is in (common/operation_facts.h). The first word is written last.
struct OperationSlot {
  using Word = std::atomic<std::uint64_t>;

  Word sequence;  // of the oldest operation that has begun and not ended; 0: none
  Word facts;     // its kind, op, dtype and root (pack_facts)
  Word count;     // its elements
  Word begun;     // when, CLOCK_MONOTONIC in nanoseconds
  Word done;      // sequence of the last collective that ended
  Word size;      // ranks of the communicator; 0: there is none with this number
  Word reserved[2];
};
inline constexpr std::size_t kOperationSlots = 8;  // of a process' first communicators

// Time in each part of a worker's steps, summed over the steps that it told. One moment's values of
// the page's words of the same names. Nanoseconds; docs/ddp.md defines the parts.
struct StepSums {
  std::uint64_t num_steps = 0;
  std::uint64_t step = 0, forward = 0, backward = 0, communication = 0, exposed = 0, loader = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const StepSums&, const StepSums&) = default;
};

// Mapped, never constructed: a fresh page is zero. Words are independent of each other: a reader
// may see one that is newer than its neighbour; but for the sums, see steps_begun.
//
// The version grows when a word moves or changes its meaning. Words that are added behind the last
// one, or in a reserved place, are zero if the page's writer doesn't know them. Zero means that
// nothing is told.
struct ProgressPage {
  using Word = std::atomic<std::uint64_t>;

  Word magic;
  Word version;
  Word reserved_agent[6];

  // The worker's.
  Word phase;
  Word step;               // the last one begun: 1, 2, …
  Word steps_done;         // the last one finished
  Word own_count;          // 1: steps count from 1 in each round; 0: they are the job's numbers
  Word collectives_begun;  // of all communicators
  Word collectives_done;
  Word last_collective;  // a CollectiveKind
  Word loading_ns;       // that the training waited for its data, in all

  // The agent's.
  Word stop_request;   // a StopRequest
  Word stop_deadline;  // CLOCK_MONOTONIC in nanoseconds; 0: none
  Word peer_lost;      // 1: a worker of the round has died, and the others may go on in place
  Word reserved_stop[13];

  // The worker's again.
  OperationSlot operations[kOperationSlots];  // by communicator
  Word num_reports;                           // how often the loop has told its loss; 0: never
  Word loss;                                  // the bits of a double: the last one
  Word samples;                               // that this worker has trained on in this round

  // StepSums. To add a step: steps_begun + 1, then the sums, then steps_timed + 1. A reader has
  // the sums of one moment where steps_timed before it read them equals steps_begun afterwards.
  Word steps_begun;
  Word steps_timed;
  Word step_ns, forward_ns, backward_ns, communication_ns, exposed_ns, loader_ns;
  Word step_bytes;

  // Written by the observer of a program that knows nothing of this page (docs/observe.md): steps
  // seen, then StepSums with the same protocol.
  Word seen_step;
  Word seen_begun;
  Word seen_timed;
  Word seen_step_ns, seen_loader_ns;
  Word seen_forward_ns, seen_backward_ns, seen_communication_ns, seen_exposed_ns;
  Word seen_step_bytes;
  Word seen_gpu_peak_bytes;  // memory that it had at most; 0: it uses no GPU
  Word seen_skipped;         // steps that its gradient scaler skipped
  Word seen_reports;         // losses that it logged
  Word seen_loss;            // the bits of a double: the last one
};
static_assert(std::endian::native == std::endian::little, "the page's words are little-endian");
static_assert(ProgressPage::Word::is_always_lock_free && sizeof(ProgressPage::Word) == 8);
static_assert(std::is_standard_layout_v<ProgressPage> &&
              sizeof(ProgressPage) <= kProgressPageBytes);
static_assert(
    offsetof(ProgressPage, phase) == 64 && offsetof(ProgressPage, stop_request) == 128 &&
    offsetof(ProgressPage, peer_lost) == 144 && offsetof(ProgressPage, operations) == 256 &&
    offsetof(ProgressPage, num_reports) == 768 && offsetof(ProgressPage, steps_begun) == 792 &&
    offsetof(ProgressPage, step_bytes) == 856 && offsetof(ProgressPage, seen_step) == 864 &&
    offsetof(ProgressPage, seen_step_bytes) == 936 && offsetof(ProgressPage, seen_loss) == 968);

}  // namespace ddprun
