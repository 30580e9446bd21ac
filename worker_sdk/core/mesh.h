// SPDX-License-Identifier: Apache-2.0
// The ranks of a job along named axes, with a communicator for each: what data, tensor and pipeline
// parallelism share a world by (docs/parallel.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// How a job's ranks are laid out along named axes, as "pp2xdp2xtp2": who shares which part of the
// model with whom (docs/parallel.md). Pure.
struct MeshAxis {
  std::string name;
  int size = 1;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// Rank numbers count along the last axis first: with pp2 x dp2 x tp2 ranks 0 and 1 are a tp pair.
// Constant after construction.
class MeshLayout {
 public:
  // Outermost axis first. Throws Error(kInvalidArgument): no axis, a size below 1, a name that is
  // empty, used twice or not of the letters a … z and _.
  explicit MeshLayout(std::vector<MeshAxis> axes);

  // "tp2xdp2", in any order, as a user writes it. The axes come in the order of `names` (outermost
  // first), of which those left out have size 1. Throws Error(kInvalidArgument) that says what is
  // wrong with the text.
  static MeshLayout parse(std::string_view text, const std::vector<std::string>& names);

  int size() const { return size_; }  // ranks
  const std::vector<MeshAxis>& axes() const { return axes_; }

  // Throw Error(kInvalidArgument) for an axis that there is not, or a rank.
  int size_of(std::string_view axis) const { return axes_[index_of(axis)].size; }
  int coordinate(int rank, std::string_view axis) const;

  // The ranks that differ from `rank` along these axes alone, ascending; `rank` is among them.
  std::vector<int> group_of(int rank, const std::vector<std::string>& axes) const;

  // "pp2xdp2xtp2"; axes of one rank are left out, but not all of them.
  std::string text() const;

 private:
  std::size_t index_of(std::string_view axis) const;
  int stride_of(std::size_t index) const;
  void check_rank(int rank) const;

  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

// One thread, that of the communicators.
class Mesh {
 public:
  // `world` outlives this object. Not collective. Throws Error(kInvalidArgument) where the layout
  // has another number of ranks.
  Mesh(Communicator& world, MeshLayout layout);

  const MeshLayout& layout() const { return layout_; }
  Communicator& world() { return world_; }

  // This rank's place along an axis, which is its rank in along().
  int coordinate(std::string_view axis) const { return layout_.coordinate(world_.rank(), axis); }
  int size_of(std::string_view axis) const { return layout_.size_of(axis); }

  // The communicator of the ranks that differ from this one along these axes alone. It is made when
  // first asked for, by a split of the world. It is the world's itself if these are all of its
  // ranks. Host: waits for the ranks of the group only. nccl: every rank of the world asks for the
  // same axes in the same order. The reference is good as long as this object. Errors:
  // Communicator::split's; Error(kInvalidArgument) for an axis that there is not.
  Communicator& along(std::string_view axis) { return along_axes({std::string(axis)}); }
  Communicator& along_axes(const std::vector<std::string>& axes);

 private:
  Communicator& world_;
  const MeshLayout layout_;
  std::map<std::string, std::unique_ptr<Communicator>> groups_;  // by "dp+tp"
};

}  // namespace ddprun
