// SPDX-License-Identifier: Apache-2.0
// A standing agent's connection to ddprund, made again and again for as long as it stands. One of
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
    // The connection is open: to be answered by the hello, sent at once.
    std::function<void()> opened;
    std::function<void(const QueueMessage&)> message;  // Welcome first
    // It isn't, or couldn't be made; it will be tried again. Once for each time that it is away.
    std::function<void(const std::string& why)> away;
    // Trying again doesn't help: another token or certificate, a lasting refusal. Not once it was
    // welcomed.
    std::function<void(const std::string& why)> failed;
  };

  // At least one endpoint. Begins at once.
  NodeLink(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
           const membership::LinkSecurity& security, Handlers handlers);
  ~NodeLink();  // no call follows
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // For connections from now on: the one that is open stays. One that is being made, or waits to
  // be, is made at once.
  void use(const membership::LinkSecurity& security);

  // Nothing happens while no connection is open: the hello of the next one says it.
  void send(const NodeMessage& message);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: what is under way
};

}  // namespace ddprun::gangs
