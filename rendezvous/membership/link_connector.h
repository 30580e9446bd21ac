// SPDX-License-Identifier: Apache-2.0
// One endpoint of the rendezvous as an agent, a standby, or who follows its status reaches it: name
// look-up, TCP, TLS, the upgrade of its path, and the proof of the token. What is tried again, and
// when, is its owner's affair. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/endpoint.h"
#include "rendezvous/membership/connect_failure.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::membership {

class LinkConnector {
 public:
  // One of them is called, once, from the io context, never from inside a call of this class.
  struct Handlers {
    // Both sides have proved themselves. Its messages have at most kMaxMessageBytes, or
    // kMaxStateBytes.
    std::function<void(std::shared_ptr<FrameStream>)> opened;
    std::function<void(const ConnectFailure&)> failed;
  };

  static constexpr std::size_t kMaxQueuedBytes = std::size_t{4} << 20;

  static constexpr std::size_t kMaxStateBytes = std::size_t{4} << 20;

  static constexpr char kAgentPath[] = "/v1/agent";

  // How the token is proved: in the first messages; or, of one who only listens, in the request for
  // the upgrade, as for a page (security/http_proof.h).
  enum class Door { kMessages, kRequest };

  // Opens nothing yet.
  LinkConnector(boost::asio::io_context& io, Endpoint endpoint, LinkSecurity security,
                std::string path = kAgentPath, Door door = Door::kMessages);
  ~LinkConnector();  // as cancel()
  LinkConnector(const LinkConnector&) = delete;
  LinkConnector& operator=(const LinkConnector&) = delete;

  const Endpoint& endpoint() const;

  // Begins an attempt, which has failed where it has not come to an end by `until`. One at a time.
  void attempt(Clock::time_point until, Handlers handlers);
  // Drops the attempt, if there is one: no handler is called.
  void cancel();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // second owner: the operations that are under way
};

}  // namespace ddprun::membership
