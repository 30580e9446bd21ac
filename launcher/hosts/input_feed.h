// SPDX-License-Identifier: Apache-2.0
// Reads the launcher's standard input for global rank 0, wherever that is, and never more than its
// agent has room for. io thread only.
#pragma once

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/check.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

// Which node has global rank 0, and how many bytes its agent has room for. Pure.
class InputFlow {
 public:
  explicit InputFlow(std::size_t num_nodes) : room_(num_nodes, 0) {}

  // An agent has room for more, and maybe got rank 0. Never more than channel::kMostInputBytes,
  // whatever it says.
  void has_room(int node, const channel::Room& room) {
    room_[node] = std::min(room_[node] + room.num_bytes, channel::kMostInputBytes);
    if (room.has_rank_0) node_ = node;
  }
  // Its channel is over.
  void gone(int node) {
    room_[node] = 0;
    if (node_ == node) node_ = -1;
  }
  // So many bytes went to node().
  void sent(std::size_t num_bytes) {
    DDPRUN_CHECK(num_bytes <= room());
    room_[node_] -= num_bytes;
  }

  int node() const { return node_; }  // −1: rank 0 is nowhere yet, or nowhere now
  std::size_t room() const { return node_ < 0 ? 0 : room_[node_]; }

 private:
  int node_ = -1;
  std::vector<std::size_t> room_;  // of each node
};

class InputFeed {
 public:
  // Reads `fd`, which stays as it is for others that have it: a terminal only while this process is
  // in its foreground; where it begins in the background, there is nothing to read. `send` is
  // called from the io context or within has_room(); empty bytes are the end of the input.
  InputFeed(boost::asio::io_context& io, int fd, std::size_t num_nodes,
            std::function<void(int node, std::string bytes)> send);

  // As InputFlow's.
  void has_room(int node, const channel::Room& room);
  void gone(int node) { flow_.gone(node); }
  // This process goes on after it was stopped, maybe in the foreground again.
  void continued() { pump(); }

 private:
  void open();
  void pump();
  ssize_t take(std::size_t most_bytes);
  bool is_in_background() const;

  const int original_fd_;
  bool is_terminal_ = false;
  bool may_block_ = false;  // its flags are not ours: read only what is known to be there
  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor input_;  // not open: a file, or over
  InputFlow flow_;
  const std::function<void(int, std::string)> send_;
  std::array<char, channel::kMostOutputBytes> buffer_;
  bool busy_ = false;   // a wait, or the next pump(), is under way
  bool ended_ = false;  // all is read
};

}  // namespace ddprun::launcher
