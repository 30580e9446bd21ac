// SPDX-License-Identifier: Apache-2.0
// Reads the launcher's standard input for global rank 0, wherever that is, and never more than its
// agent has room for. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

#include "launcher/hosts/input_flow.h"

namespace ddprun::launcher {

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
  // No call of `send` any more.
  void stop();

 private:
  enum class Kind { kPipe, kTerminal, kSocket, kFile };

  void open(int fd);
  void pump();
  void pump_later();
  void end();
  ssize_t take(std::size_t most_bytes);

  const int original_fd_;
  Kind kind_ = Kind::kFile;
  bool may_block_ = false;  // its flags are not ours: read only what is known to be there
  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor input_;  // not open: a file, or over
  InputFlow flow_;
  std::function<void(int, std::string)> send_;  // empty: stopped
  std::array<char, channel::kMostOutputBytes> buffer_;
  bool busy_ = false;   // a wait, or the next pump(), is under way
  bool ended_ = false;  // all is read
};

}  // namespace ddprun::launcher
