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
#include "worker_sdk/core/mesh_layout.h"

namespace ddprun {

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

  // The communicator of the ranks that differ from this one along these axes alone: made when first
  // asked for, by a split of the world; the world's itself where these are all of its ranks. Host:
  // waits for the ranks of the group only. nccl: every rank of the world asks for the same axes in
  // the same order. The reference is good as long as this object. Errors: Communicator::split's;
  // Error(kInvalidArgument) for an axis that there is not.
  Communicator& along(std::string_view axis);
  Communicator& along_axes(const std::vector<std::string>& axes);

 private:
  Communicator& world_;
  const MeshLayout layout_;
  std::map<std::string, std::unique_ptr<Communicator>> groups_;  // by "dp+tp"
};

}  // namespace ddprun
