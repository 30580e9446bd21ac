// SPDX-License-Identifier: Apache-2.0
// One collective call as its ranks compare it, and what a call carries while it runs.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "common/clock.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::host {

// The progress page's CollectiveKind, number by number, and kStart.
enum class CallKind : std::uint8_t {
  kAllReduce = 1,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kAllocate,
  kSend,
  kRecv,
  kReduce,
  kStart,
};

const char* to_string(CallKind kind);

// Must be equal on all ranks of a collective; lies in shared memory and travels between nodes.
struct CallHeader {
  std::uint64_t count = 0;     // elements of the caller's (smaller) buffer
  std::uint32_t sequence = 0;  // number of this collective on this communicator, from 1
  std::int32_t root = 0;
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kUInt8;
  std::uint8_t op = 0;         // a ReduceOp
  DType wire = DType::kUInt8;  // as what elements travel
  std::uint8_t reserved[4] = {};

  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};
static_assert(sizeof(CallHeader) == 24 && std::is_trivially_copyable_v<CallHeader>);

// "all_reduce(float32 × 1024, sum)".
std::string describe(const CallHeader& header);

// The error text for two ranks whose calls are not the same.
std::string different_calls(int rank, const CallHeader& call, int other_rank,
                            const CallHeader& other);

// A call under way.
struct Call {
  CallHeader header;
  Deadline deadline;
  std::chrono::milliseconds timeout;  // what the deadline was made from, for messages

  // Every rank enters it, under the same sequence number.
  bool is_collective() const {
    return header.kind != CallKind::kSend && header.kind != CallKind::kRecv &&
           header.kind != CallKind::kStart;
  }

  // "all_reduce(float32 × 1024, sum) #17".
  std::string text() const;
};

}  // namespace ddprun::host
