// SPDX-License-Identifier: Apache-2.0
// The agent's connection to the rendezvous: WebSocket on /v1/agent, one text frame per envelope.
// One of several endpoints leads and takes agents in; the others are standbys (standby_header.h).
// Carries out the link actions of AgentMachine and produces its link events. io thread only.
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
  // `on_event` gets LinkUp, LinkMessage, LinkAnswered, ClockSampled, LinkDown and LinkFailed,
  // always from the io context, never from inside a call of this class. So does
  // `on_failed_attempt`, which is called each time that an attempt of connect() failed at each
  // endpoint and another one will follow. With `security` each side proves itself before LinkUp.
  // At least one endpoint. Opens nothing yet.
  AgentLink(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
            std::function<void(const AgentEvent&)> on_event,
            std::function<void(const std::string& why)> on_failed_attempt = nullptr,
            const LinkSecurity& security = {});
  ~AgentLink();  // closes; no event comes afterwards
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  // Tries until `timeout`. It begins with the endpoint that welcomed this node last, or after the
  // one that took the last connection without a welcome. Refused connections, unresolved names,
  // standbys and peers that don't answer send it to the next endpoint at once. After each turn
  // through the list there is a back-off (5 ms … 500 ms). Then LinkUp, or LinkFailed. That says who
  // was tried, for how long, how often, what happened last at each, and what to check. An endpoint
  // may be refused, dropped, unresolvable, a standby, or no ddprun rendezvous. A rendezvous whose
  // token differs is the user's fault at once, unless one welcomed this node before. Then it is
  // another process at its address, which is no reason to end a job. While a connection is open or
  // being opened: does nothing.
  void connect(std::chrono::milliseconds timeout);

  // Queues one frame. Nothing happens when no connection is open (the machine resends after the
  // next LinkUp). A queue of more than kMaxQueuedBytes that doesn't drain ends the connection.
  void send(const AgentEnvelope& envelope);

  // Binary frames of a store proxy, which the machine has no part in. `on_binary` is called
  // likewise; it may throw Error(kProtocol), which ends the connection. Empty: a binary frame ends
  // it.
  void on_binary(std::function<void(std::string_view)> on_binary);
  void send_binary(std::string frame);

  // From now on pings every `interval`; LinkDown{silence} when no ping sent within the last
  // `timeout` was answered. Counted from the sending of the last answered ping, so that this side
  // always notices before the rendezvous does. With several endpoints the others are tried before
  // that, also on a later connection that is not welcome yet. If one takes this node in, the open
  // connection is closed: LinkDown without silence. The connect() that follows is LinkUp there.
  // Says, too, that this connection's endpoint has welcomed this node.
  void set_keep_alive(std::chrono::milliseconds timeout, std::chrono::milliseconds interval);

  // Ends the connection or the attempt; what was queued is sent first, for up to a second. No event
  // comes afterwards until the next connect().
  void close();

  static constexpr std::size_t kMaxQueuedBytes = LinkConnector::kMaxQueuedBytes;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // second owner: the handlers that are under way
};

}  // namespace ddprun::membership
