// SPDX-License-Identifier: Apache-2.0
// The page of memory that a worker and its agent share. It tells how far the worker is, and whether
// it is to stop. docs/internals/agent-socket.md has layout and meaning. Every field is one 64-bit
// little-endian word at a fixed offset, so that a program in any language can map it.
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
// The limit of a line on the socket beside it, with its '\n'.
inline constexpr std::size_t kMaxAgentLineBytes = 4096;

enum class ProgressPhase : std::uint64_t {
  kStartUp = 0,
  kTrain = 1,
  kCheckpoint = 2,
  kEvaluate = 3,
  kTearDown = 4,
};

// Programs of any language use these numbers: none ever changes.
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
// The names in messages, by number.
inline constexpr std::array kCollectiveNames{
    "operation", "all_reduce", "broadcast", "all_gather", "reduce_scatter",
    "barrier",   "allocate",   "send",      "recv",       "reduce"};
static_assert(kCollectiveNames.size() == static_cast<std::size_t>(CollectiveKind::kLast) + 1);

enum class StopRequest : std::uint64_t { kNone = 0, kPreemption = 1 };

// The present operation of a communicator (common/operation_facts.h). The first word is written
// last.
struct OperationSlot {
  using Word = std::atomic<std::uint64_t>;

  Word sequence;  // of the oldest operation that has begun and not ended; 0: none
  Word facts;     // its kind, op, dtype and root (pack_facts)
  Word count;     // its elements
  Word begun;     // when it began, CLOCK_MONOTONIC in nanoseconds
  Word done;      // sequence of the last collective that ended
  Word size;      // ranks of the communicator; 0: there is none with this number
  Word reserved[2];
};
inline constexpr std::size_t kOperationSlots = 8;  // for a process' first communicators

// The time in each part of a worker's steps, in nanoseconds, summed over the steps that it has
// reported. The values are those of the page's words of the same names at one moment. docs/ddp.md
// defines the parts.
struct StepSums {
  std::uint64_t num_steps = 0;
  std::uint64_t step = 0, forward = 0, backward = 0, communication = 0, exposed = 0, loader = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const StepSums&, const StepSums&) = default;
};

// The page is mapped, never constructed: a fresh one is zero. Words are independent of each other:
// a reader may see one that is newer than its neighbour. The sums are different, see steps_begun.
//
// The version grows when a word moves or changes its meaning. Words that are added behind the last
// one, or in a reserved place, are zero if the page's writer doesn't know them. Zero means that
// nothing is reported.
struct ProgressPage {
  using Word = std::atomic<std::uint64_t>;

  Word magic;
  Word version;
  Word reserved_agent[6];

  // The worker writes these words.
  Word phase;
  Word step;               // the last one begun: 1, 2, …
  Word steps_done;         // the last one finished
  Word own_count;          // 1: steps count from 1 in each round; 0: they are the job's numbers
  Word collectives_begun;  // of all communicators
  Word collectives_done;
  Word last_collective;  // a CollectiveKind
  Word loading_ns;       // how long the training waited for its data, in all

  // The agent writes these words.
  Word stop_request;   // a StopRequest
  Word stop_deadline;  // CLOCK_MONOTONIC in nanoseconds; 0: none
  Word peer_lost;      // 1: a worker of the round has died, and the others may go on in place
  Word reserved_stop[13];

  // The worker writes these words.
  OperationSlot operations[kOperationSlots];  // by communicator
  Word num_reports;                           // how often the loop has reported its loss; 0: never
  Word loss;                                  // the last loss: the bits of a double
  Word samples;                               // how many this worker has trained on in this round

  // The words of StepSums. To add a step, the writer sets steps_begun + 1, then the sums, then
  // steps_timed + 1. A reader has the sums of one moment if steps_timed before reading them equals
  // steps_begun afterwards.
  Word steps_begun;
  Word steps_timed;
  Word step_ns, forward_ns, backward_ns, communication_ns, exposed_ns, loader_ns;
  Word step_bytes;

  // The observer of a program that doesn't use this page (docs/observe.md) writes these: the steps
  // that it saw, then StepSums with the same protocol.
  Word seen_step;
  Word seen_begun;
  Word seen_timed;
  Word seen_step_ns, seen_loader_ns;
  Word seen_forward_ns, seen_backward_ns, seen_communication_ns, seen_exposed_ns;
  Word seen_step_bytes;
  Word seen_gpu_peak_bytes;  // its largest use of memory; 0: it uses no GPU
  Word seen_skipped;         // steps that its gradient scaler skipped
  Word seen_reports;         // losses that it logged
  Word seen_loss;            // the last loss: the bits of a double
  // The last collective that it saw begin: a name of at most 16 bytes, and how many its default
  // process group has begun.
  Word seen_collective[2];
  Word seen_collectives;
  Word seen_samples;  // that its data loader gave the steps
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
    offsetof(ProgressPage, seen_step_bytes) == 936 && offsetof(ProgressPage, seen_loss) == 968 &&
    offsetof(ProgressPage, seen_collectives) == 992 &&
    offsetof(ProgressPage, seen_samples) == 1000);

}  // namespace ddprun
