// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/input_flow.h"

#include <algorithm>

#include "common/check.h"

namespace ddprun::launcher {

void InputFlow::has_room(int node, const channel::Room& room) {
  std::size_t& bytes = room_[static_cast<std::size_t>(node)];
  bytes = std::min(bytes + room.num_bytes, channel::kMostInputBytes);
  if (room.has_rank_0) node_ = node;
}

void InputFlow::gone(int node) {
  room_[static_cast<std::size_t>(node)] = 0;
  if (node_ == node) node_ = -1;
}

void InputFlow::sent(std::size_t num_bytes) {
  DDPRUN_CHECK(num_bytes <= room());
  room_[static_cast<std::size_t>(node_)] -= num_bytes;
}

}  // namespace ddprun::launcher
