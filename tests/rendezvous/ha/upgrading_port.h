// SPDX-License-Identifier: Apache-2.0
// A port at which WebSockets are opened, as HttpSession does it, in short.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "rendezvous/membership/frame_stream.h"

namespace ddprun::ha::testing {

class UpgradingPort {
 public:
  using Frames = std::shared_ptr<membership::FrameStream>;

  UpgradingPort(boost::asio::io_context& io, std::function<void(const Frames&)> take);
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void close();

 private:
  void accept();

  boost::asio::ip::tcp::acceptor acceptor_;
  const std::function<void(const Frames&)> take_;
};

}  // namespace ddprun::ha::testing
