// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/mesh.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

Mesh::Mesh(Communicator& world, MeshLayout layout) : world_(world), layout_(std::move(layout)) {
  if (layout_.size() == world_.size()) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("a mesh of ", layout_.text(), " is ", layout_.size(), " ranks, there are ",
                     world_.size()));
}

Communicator& Mesh::along(std::string_view axis) { return along_axes({std::string(axis)}); }

Communicator& Mesh::along_axes(const std::vector<std::string>& axes) {
  const std::vector<int> ranks = layout_.group_of(world_.rank(), axes);
  if (static_cast<int>(ranks.size()) == world_.size()) return world_;
  std::vector<std::string> names = axes;  // one group, however it is asked for
  std::sort(names.begin(), names.end());
  std::string name;
  for (const std::string& each : names) name += (name.empty() ? "" : "+") + each;
  std::unique_ptr<Communicator>& group = groups_[name];
  if (!group) group = world_.split(ranks, {.name = name});
  return *group;
}

}  // namespace ddprun
