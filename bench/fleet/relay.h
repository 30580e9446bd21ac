// SPDX-License-Identifier: Apache-2.0
// The way between one host and the rendezvous, as a TCP relay on a loopback port. It can be slow.
// It can hold back the bytes that go up or down, until they are let through again. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "common/endpoint.h"

namespace ddprun::bench {

class Relay {
 public:
  // Listens at once. `delay`: of each piece, each way. Throws Error(kSystem).
  Relay(boost::asio::io_context& io, const Endpoint& target, std::chrono::microseconds delay);
  ~Relay();  // closes everything
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  Endpoint endpoint() const;
  void hold(bool up, bool down);

 private:
  class Pair;
  // Second owner of both: the operations under way.
  struct Way {
    boost::asio::ip::tcp::endpoint target;
    std::chrono::microseconds delay{0};
    bool up_held = false, down_held = false;
  };
  void accept_next();

  boost::asio::ip::tcp::acceptor acceptor_;
  const std::shared_ptr<Way> way_;
  std::vector<std::weak_ptr<Pair>> pairs_;
};

}  // namespace ddprun::bench
