// SPDX-License-Identifier: Apache-2.0
// The agent's connection to the rendezvous: WebSocket on /v1/agent, one text frame per envelope.
// One of several endpoints leads and takes agents in; the others are standbys (standby_header.h).
// The class carries out the link actions of AgentMachine and produces its link events. io thread
// only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/link/agent_machine.h"
#include "common/endpoint.h"
#include "rendezvous/wire/link_connector.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::membership {

class AgentLink {
 public:
  // `on_event` gets LinkUp, LinkMessage, LinkAnswered, ClockSampled, LinkDown and LinkFailed. It is
  // always called from the io context, never from inside a call of this class; so is
  // `on_failed_attempt`. That is called each time that connect() has failed at each endpoint and
  // will try again. With `security` each side proves itself before LinkUp. There is at least one
  // endpoint. The constructor opens nothing.
  AgentLink(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
            std::function<void(const AgentEvent&)> on_event,
            std::function<void(const std::string& why)> on_failed_attempt = nullptr,
            const LinkSecurity& security = {});
  ~AgentLink();  // closes; no event comes afterwards
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  // Tries to connect until `timeout`, and ends with LinkUp or LinkFailed. It begins with the
  // endpoint that welcomed this node last, or after the one that took the last connection without a
  // welcome. Refused connections, unresolved names, standbys and peers that don't answer send it to
  // the next endpoint at once. After each turn through the list there is a back-off (5 ms … 500
  // ms). LinkFailed says who was tried, for how long, how often, what happened last at each, and
  // what to check. An endpoint may be refused, dropped, unresolvable, a standby, or no ddprun
  // rendezvous. A rendezvous whose token differs is the user's fault at once, unless one has
  // welcomed this node before. Then another process has its address, which is no reason to end a
  // job. Does nothing while a connection is open or being opened.
  void connect(std::chrono::milliseconds timeout);

  // Queues one frame. Does nothing while no connection is open (the machine resends after the next
  // LinkUp). The connection ends if a queue of more than kMaxQueuedBytes doesn't drain.
  void send(const AgentEnvelope& envelope);

  // Binary frames of a store proxy, which the machine doesn't see. `on_binary` is called as
  // `on_event` is; it may throw Error(kProtocol), which ends the connection. Without a handler
  // (empty) a binary frame ends the connection.
  void on_binary(std::function<void(std::string_view)> on_binary);
  void send_binary(std::string frame);

  // Pings every `interval` from now on. LinkDown{silence} follows when no ping sent within the last
  // `timeout` was answered. The time counts from the sending of the last answered ping, so this
  // side always notices before the rendezvous does. With several endpoints the others are tried
  // before that, also on a later connection that is not welcome yet. If one of them takes this node
  // in, the open connection is closed: LinkDown without silence. The next connect() gives LinkUp
  // there. The call also says that this connection's endpoint has welcomed this node.
  void set_keep_alive(std::chrono::milliseconds timeout, std::chrono::milliseconds interval);

  // Ends the connection or the attempt; what was queued is sent first, for up to a second. No event
  // comes afterwards until the next connect().
  void close();

  static constexpr std::size_t kMaxQueuedBytes = LinkConnector::kMaxQueuedBytes;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the handlers that are under way
};

}  // namespace ddprun::membership
