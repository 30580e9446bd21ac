// SPDX-License-Identifier: Apache-2.0
// Standard input on its way to global rank 0: which node has that rank, and how many bytes its
// agent has room for. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

class InputFlow {
 public:
  explicit InputFlow(std::size_t num_nodes) : room_(num_nodes, 0) {}

  // An agent has room for more, and maybe got rank 0. Never more than channel::kMostInputBytes,
  // whatever it says.
  void has_room(int node, const channel::Room& room);
  // Its channel is over.
  void gone(int node);
  // So many bytes went to node().
  void sent(std::size_t num_bytes);

  int node() const { return node_; }  // −1: rank 0 is nowhere yet, or nowhere now
  std::size_t room() const { return node_ < 0 ? 0 : room_[static_cast<std::size_t>(node_)]; }

 private:
  int node_ = -1;
  std::vector<std::size_t> room_;  // of each node
};

}  // namespace ddprun::launcher
