// SPDX-License-Identifier: Apache-2.0
// One collective call: what the ranks compare of it, and what it carries while it runs.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "common/clock.h"
#include "common/progress_page.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::host {

// The start of a communicator. Its ranks meet as in a call, but no worker calls it.
inline constexpr auto kStartCall = static_cast<CollectiveKind>(255);

// Must be equal on all ranks of a collective. It lies in shared memory and travels between nodes.
struct CallHeader {
  std::uint64_t count = 0;     // elements of the caller's (smaller) buffer
  std::uint32_t sequence = 0;  // number of this collective on this communicator, from 1
  std::int32_t root = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kUInt8;
  std::uint8_t op = 0;         // a ReduceOp
  DType wire = DType::kUInt8;  // the type that elements travel as
  std::uint8_t reserved[4] = {};

  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};
static_assert(sizeof(CallHeader) == 24 && std::is_trivially_copyable_v<CallHeader>);

// Returns "all_reduce(float32 × 1024, sum)".
std::string describe(const CallHeader& header);

// Returns the error text for two ranks whose calls differ.
std::string different_calls(int rank, const CallHeader& call, int other_rank,
                            const CallHeader& other);

// A call under way.
struct Call {
  CallHeader header;
  Deadline deadline;
  std::chrono::milliseconds timeout;  // what the deadline was made from, for messages

  // True if every rank enters it, under the same sequence number.
  bool is_collective() const {
    return header.kind != CollectiveKind::kSend && header.kind != CollectiveKind::kRecv &&
           header.kind != kStartCall;
  }

  // Returns "all_reduce(float32 × 1024, sum) #17".
  std::string text() const;
};

}  // namespace ddprun::host
