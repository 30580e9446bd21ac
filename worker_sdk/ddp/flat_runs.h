// SPDX-License-Identifier: Apache-2.0
// Finds which parameters of a flat optimiser can be updated as one array: they lie side by side,
// and so do their gradients. Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "worker_sdk/core/tensor_view.h"

namespace ddprun {

// One parameter in flat memory.
struct FlatPiece {
  static constexpr std::size_t kNoBucket = std::numeric_limits<std::size_t>::max();

  std::size_t offset = 0;          // its first element's place in the flat memory
  std::size_t count = 0;           // elements
  std::uintptr_t gradient = 0;     // address; 0: no gradient, the piece is left alone
  std::size_t bucket = kNoBucket;  // where the gradient lies; kNoBucket: in memory of its own
  std::size_t group = 0;           // group of parameters that share their options
  std::uint64_t num_updates = 0;   // updates that it has had
};

// Elements [offset, offset + count) of the flat memory, gaps between the pieces included.
struct FlatRun {
  std::size_t first_piece = 0;
  std::size_t num_pieces = 0;
  std::size_t offset = 0;
  std::size_t count = 0;

  friend bool operator==(const FlatRun&, const FlatRun&) = default;
};

// Returns the fewest runs that hold every piece with a gradient. Pieces of a run have the same
// bucket, group and number of updates; their gradients have the same gaps as the pieces. `pieces`
// are sorted by offset.
std::vector<FlatRun> find_runs(std::span<const FlatPiece> pieces, std::size_t element_bytes);

// Returns the bucket that holds all of [address, address + size_bytes); kNoBucket: none.
std::size_t find_bucket(std::span<const TensorView> buckets, std::uintptr_t address,
                        std::size_t size_bytes);

}  // namespace ddprun
