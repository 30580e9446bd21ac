// SPDX-License-Identifier: Apache-2.0
// A standing agent's connection to ddprund. It is made again each time that it is lost. One of
// several endpoints leads; the others are standbys. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::gangs {

class NodeLink {
 public:
  // Called from the io context, never from inside a call of this class.
  struct Handlers {
    // The connection is open. The handler must send the hello at once.
    std::function<void()> opened;
    std::function<void(const QueueMessage&)> message;  // Welcome first
    // The connection was lost, or couldn't be made; another attempt follows. Called once for each
    // time that it is away.
    std::function<void(const std::string& why)> away;
    // Another attempt would not help: the token or certificate differs, or the refusal is lasting.
    // Never called after a welcome.
    std::function<void(const std::string& why)> failed;
  };

  // There is at least one endpoint. Begins to connect at once.
  NodeLink(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
           const membership::LinkSecurity& security, Handlers handlers);
  ~NodeLink();  // no call follows
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Sets the security for later connections: an open one stays. A connection that is being made, or
  // waits for its time, is made anew at once.
  void use(const membership::LinkSecurity& security);

  // Sends a message. Does nothing while no connection is open: the next hello says it.
  void send(const NodeMessage& message);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // shared with the handlers that are under way
};

}  // namespace ddprun::gangs
