// SPDX-License-Identifier: Apache-2.0
// One operation of a communicator: a worker records it, and its agent reads it in the progress page
// (docs/flight-recorder.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/progress_page.h"

namespace ddprun {

struct OperationFacts {
  CollectiveKind kind = CollectiveKind::kNone;
  std::uint8_t op = 0;      // a ReduceOp's number; valid if has_op(kind)
  std::uint8_t dtype = 0;   // a DType's number
  std::int32_t root = -1;   // the root; the peer of send and recv; −1: none, or any for recv
  std::uint64_t count = 0;  // elements of the caller's smaller buffer; allocate: bytes
  // The communicator's number in its process, in the order of their making, from 0.
  std::uint32_t communicator = 0;
  std::uint64_t sequence = 0;  // the operation's number on its communicator, from 1

  friend bool operator==(const OperationFacts&, const OperationFacts&) = default;
};

// These pack kind, op, dtype and root into one word of the page, and back. An invalid value is
// unpacked as one that has no name.
std::uint64_t pack_facts(const OperationFacts& facts);
void unpack_facts(std::uint64_t word, OperationFacts& facts);

const char* kind_name(CollectiveKind kind);  // "all_reduce"; "operation" for an unknown one
const char* op_name(std::uint8_t op);        // "sum"
const char* dtype_name(std::uint8_t dtype);  // "float32"
std::uint64_t size_bytes_of(const OperationFacts& facts);
bool has_op(CollectiveKind kind);
bool has_root(CollectiveKind kind);

// Returns "all_reduce #127 (25.0 MiB float32, sum) of communicator 0".
std::string text_of(const OperationFacts& facts);

// Returns "512 bytes", "4.0 KiB", "25.0 MiB".
std::string bytes_text(std::uint64_t size_bytes);

// Returns "rank 3", "ranks 0–2, 5". `ranks` ascend. Shows the first `most` parts, then how many
// ranks are left.
std::string ranks_text(const std::vector<int>& ranks, std::size_t most = 8);

// One communicator's state, as a worker reports it on its page.
struct CommunicatorState {
  std::uint32_t communicator = 0;
  int size = 0;                        // number of its ranks
  std::optional<OperationFacts> open;  // the oldest operation that has begun and not ended
  std::uint64_t begun_ns = 0;          // when that began, CLOCK_MONOTONIC
  std::uint64_t done = 0;              // sequence of the last collective that ended; 0: none
};

}  // namespace ddprun
