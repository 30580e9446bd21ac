// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/flat_runs.h"

namespace ddprun {
namespace {

bool continues(const FlatPiece& last, const FlatPiece& next, std::size_t element_bytes) {
  return last.bucket != FlatPiece::kNoBucket && last.bucket == next.bucket &&
         last.group == next.group && last.num_updates == next.num_updates &&
         next.gradient > last.gradient &&
         next.gradient - last.gradient == (next.offset - last.offset) * element_bytes;
}

}  // namespace

std::vector<FlatRun> find_runs(std::span<const FlatPiece> pieces, std::size_t element_bytes) {
  std::vector<FlatRun> runs;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const FlatPiece& piece = pieces[i];
    if (piece.gradient == 0) continue;
    const bool follows = !runs.empty() && runs.back().first_piece + runs.back().num_pieces == i;
    if (!follows || !continues(pieces[i - 1], piece, element_bytes)) {
      runs.push_back({.first_piece = i, .offset = piece.offset});
    }
    FlatRun& run = runs.back();
    ++run.num_pieces;
    run.count = piece.offset + piece.count - run.offset;
  }
  return runs;
}

std::size_t find_bucket(std::span<const TensorView> buckets, std::uintptr_t address,
                        std::size_t size_bytes) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const auto begin = reinterpret_cast<std::uintptr_t>(buckets[b].data);
    const std::size_t bucket_bytes = buckets[b].size_bytes();
    if (address >= begin && size_bytes <= bucket_bytes &&
        address - begin <= bucket_bytes - size_bytes) {
      return b;
    }
  }
  return FlatPiece::kNoBucket;
}

}  // namespace ddprun
