// SPDX-License-Identifier: Apache-2.0
// Follows what a rendezvous pushes to those who watch (docs/status-page.md): of several endpoints
// the one that leads. It comes back by itself. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "rendezvous/membership/endpoint_turns.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/link_connector.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::top {

class Follower {
 public:
  struct Handlers {
    std::function<void(std::string_view frame)> said;
    // The connection has ended, or none was to be had: why. It is tried again.
    std::function<void(const std::string& why)> lost;
    // Before the first connection: what will not pass, as another token. Nothing follows.
    std::function<void(const Error& error)> refused;
  };

  Follower(boost::asio::io_context& io, const std::vector<Endpoint>& endpoints,
           const membership::LinkSecurity& security, Handlers handlers);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  void start();
  // To the daemon. While there is no connection, or one that takes nothing, nobody hears it: false.
  bool say(const std::string& text);
  // The daemon said that it will end the connection, and why; or what it says makes no sense.
  void give_up(const std::string& why);

 private:
  void failed(const membership::ConnectFailure& failure);
  void attempt();
  void opened(const std::shared_ptr<membership::FrameStream>& frames);
  void lost(const std::string& why);
  void listen_for_silence();

  const Handlers handlers_;
  std::vector<std::unique_ptr<membership::LinkConnector>> connectors_;
  membership::EndpointTurns turns_;
  boost::asio::steady_timer timer_;                  // the next attempt, or silence
  std::shared_ptr<membership::FrameStream> frames_;  // second owner: its operations
  std::chrono::milliseconds wait_;
  bool was_there_ = false;
};

}  // namespace ddprun::top
