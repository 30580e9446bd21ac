// SPDX-License-Identifier: Apache-2.0
// Connects an agent, a standby or a reader of the status to one endpoint of the rendezvous. It does
// the name look-up, TCP, TLS, the upgrade to a WebSocket, and the proof of the token. Its owner
// decides about further attempts. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "rendezvous/wire/frame_stream.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::membership {

// The reason why an attempt to connect to one endpoint of the rendezvous failed.
struct ConnectFailure {
  enum class Kind {
    kAway,          // `what` is a sentence: "connection refused (nothing listens there)"
    kStandby,       // `what` is the leader's HOST:PORT as far as it knows, or empty
    kNoRendezvous,  // another program answered; `what` says how: "it answered HTTP 404"
    kUntrusted,     // `what` completes "the rendezvous at HOST:PORT …"
  };
  Kind kind = Kind::kAway;
  std::string what;
  bool sign_of_life = false;     // the rendezvous' host has answered
  bool nothing_listens = false;  // kAway: the host refused the connection
  bool no_tls = false;           // kUntrusted: it speaks no TLS, so it isn't identified
};

// The order in which an agent tries the endpoints of its rendezvous, turn after turn. It also makes
// the text about failures. Pure: no I/O, clock or thread.
class EndpointTurns {
 public:
  // Needs at least one endpoint.
  explicit EndpointTurns(std::vector<Endpoint> endpoints);

  // Forgets failures. A turn goes through the list from `first` to its end, and then from its begin
  // to `first`.
  void begin(std::size_t first);

  // Returns the index of the endpoint to try now.
  std::size_t current() const { return current_; }
  // Returns the time limit of an attempt. For a single endpoint it is kLongestAttempt. With several
  // it is less in the first turns: an endpoint that drops packets must not block the others.
  std::chrono::milliseconds attempt_limit() const;
  // Called when current() failed; moves to the next one. Returns whether all have failed in this
  // turn.
  bool failed(const ConnectFailure& failure);

  // Returns "a:29400" or "a:29400 or b:29400".
  std::string names() const;
  // Returns the last failure of each endpoint: "connection refused (…)"; with several "a:29400:
  // connection refused (…); b:29400: it is a standby". If none failed: "there was no time for an
  // attempt".
  std::string failures() const;

  static constexpr std::chrono::milliseconds kLongestAttempt{5'000};
  static constexpr std::chrono::milliseconds kFirstAttempt{1'000};  // with several endpoints

 private:
  bool is_alone() const { return endpoints_.size() == 1; }
  std::string described(const ConnectFailure& failure) const;

  const std::vector<Endpoint> endpoints_;
  std::vector<std::string> failures_;  // by endpoint; empty: not tried
  std::size_t current_ = 0;
  std::size_t num_failed_ = 0;  // in the current turn
  int num_turns_ = 0;           // finished turns
};

class LinkConnector {
 public:
  // One of them is called once, from the I/O context, never from inside a call of this class.
  struct Handlers {
    // Both sides are authenticated. The stream's messages have at most kMaxMessageBytes, with
    // Door::kRequest kMaxStateBytes.
    std::function<void(std::shared_ptr<FrameStream>)> opened;
    std::function<void(const ConnectFailure&)> failed;
  };

  static constexpr std::size_t kMaxQueuedBytes = std::size_t{4} << 20;

  static constexpr std::size_t kMaxStateBytes = std::size_t{4} << 20;

  static constexpr char kAgentPath[] = "/v1/agent";

  // The place of the token's proof: the first messages, or the request for the upgrade. A client
  // that only reads uses the request, as for a page (security/proof.h).
  enum class Door { kMessages, kRequest };

  // Does not connect yet.
  LinkConnector(boost::asio::io_context& io, Endpoint endpoint, LinkSecurity security,
                std::string path = kAgentPath, Door door = Door::kMessages);
  ~LinkConnector();  // does the same as cancel()
  LinkConnector(const LinkConnector&) = delete;
  LinkConnector& operator=(const LinkConnector&) = delete;

  const Endpoint& endpoint() const;

  // Begins an attempt, which fails if it isn't complete at `until`. Only one at a time.
  void attempt(Clock::time_point until, Handlers handlers);
  // Drops the attempt under way, if any; no handler is called.
  void cancel();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with operations under way
};

}  // namespace ddprun::membership
