// SPDX-License-Identifier: Apache-2.0
// The standard input of an agent's ddprun: what the launcher sends of it, at the pace at which a
// worker takes it. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "common/unique_fd.h"

namespace ddprun::launcher {

class ChildInput {
 public:
  // `taken`: so many bytes have left for the pipe; there is room for as many more.
  ChildInput(boost::asio::io_context& io, std::function<void(std::size_t num_bytes)> taken);

  // The end of a pipe that is written to. Non-blocking from now on.
  void open(UniqueFd pipe);
  // Empty: the end. After it, or where nobody reads any more, nothing happens. Throws
  // Error(kProtocol) where more than channel::kMostInputBytes wait.
  void feed(std::string_view bytes);
  // What waits is dropped; the reader is at its end.
  void close();

 private:
  void write_more();

  boost::asio::posix::stream_descriptor pipe_;
  const std::function<void(std::size_t)> taken_;
  std::string outgoing_;  // being written
  std::string next_;      // after it
  bool ended_ = false;
};

}  // namespace ddprun::launcher
