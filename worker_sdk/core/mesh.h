// SPDX-License-Identifier: Apache-2.0
// The ranks of a job along named axes, with a communicator for each axis. Data, tensor and pipeline
// parallelism divide a job's ranks by such axes (docs/parallel.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// One axis of a layout such as "pp2xdp2xtp2", which says which ranks share which part of the model
// (docs/parallel.md).
struct MeshAxis {
  std::string name;
  int size = 1;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// How a job's ranks are laid out along named axes. Ranks count along the last axis first: with pp2
// x dp2 x tp2 ranks 0 and 1 are a tp pair. Pure. Constant after construction.
class MeshLayout {
 public:
  // Outermost axis first. Throws Error(kInvalidArgument): no axis, a size below 1, a name that is
  // empty, used twice or has other characters than a … z and _.
  explicit MeshLayout(std::vector<MeshAxis> axes);

  // Parses "tp2xdp2" as a user writes it, in any order. The layout's axes have the order of `names`
  // (outermost first); those left out have size 1. Throws Error(kInvalidArgument), which says what
  // is wrong with the text.
  static MeshLayout parse(std::string_view text, const std::vector<std::string>& names);

  int size() const { return size_; }  // ranks
  const std::vector<MeshAxis>& axes() const { return axes_; }

  // They throw Error(kInvalidArgument) for an unknown axis or rank.
  int size_of(std::string_view axis) const { return axes_[index_of(axis)].size; }
  int coordinate(int rank, std::string_view axis) const;

  // The ranks that differ from `rank` along these axes alone, ascending; `rank` is among them.
  std::vector<int> group_of(int rank, const std::vector<std::string>& axes) const;

  // Returns "pp2xdp2xtp2". Axes of size 1 are left out; if all have size 1, the last is kept.
  std::string text() const;

 private:
  std::size_t index_of(std::string_view axis) const;
  int stride_of(std::size_t index) const;
  void check_rank(int rank) const;

  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

// Used by one thread, that of the communicators.
class Mesh {
 public:
  // `world` outlives this object. Not collective. Throws Error(kInvalidArgument) if the layout has
  // another number of ranks.
  Mesh(Communicator& world, MeshLayout layout);

  const MeshLayout& layout() const { return layout_; }
  Communicator& world() { return world_; }

  // This rank's place along an axis, which is its rank in along().
  int coordinate(std::string_view axis) const { return layout_.coordinate(world_.rank(), axis); }
  int size_of(std::string_view axis) const { return layout_.size_of(axis); }

  // Returns the communicator of the ranks that differ from this one along these axes alone. The
  // first call makes it by a split of the world; if these are all ranks, it is the world's own.
  // Host: waits for the ranks of the group only. nccl: every rank of the world asks for the same
  // axes in the same order. The reference is valid as long as this object. Errors:
  // Communicator::split's; Error(kInvalidArgument) for an unknown axis.
  Communicator& along(std::string_view axis) { return along_axes({std::string(axis)}); }
  Communicator& along_axes(const std::vector<std::string>& axes);

 private:
  Communicator& world_;
  const MeshLayout layout_;
  std::map<std::string, std::unique_ptr<Communicator>> groups_;  // by the axes' names: "dp+tp"
};

}  // namespace ddprun
