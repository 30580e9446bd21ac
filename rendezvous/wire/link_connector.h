// SPDX-License-Identifier: Apache-2.0
// Connects an agent, a standby or a reader of the status to one endpoint of the rendezvous. Does
// the name look-up, TCP, TLS, the upgrade of its path, and the proof of the token. Its owner
// decides what is tried again, and when. io thread only.
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

// Why an attempt to connect to one endpoint of the rendezvous came to nothing.
struct ConnectFailure {
  enum class Kind {
    kAway,          // `what` is a sentence: "connection refused (nothing listens there)"
    kStandby,       // `what` is where the leader is as far as it knows, HOST:PORT, or empty
    kNoRendezvous,  // `what` is what something else answered: "it answered HTTP 404"
    kUntrusted,     // `what` completes "the rendezvous at HOST:PORT …"
  };
  Kind kind = Kind::kAway;
  std::string what;
  bool sign_of_life = false;     // the rendezvous' host is there
  bool nothing_listens = false;  // kAway: the host is there, and says so
  bool no_tls = false;           // kUntrusted: it speaks no TLS, so may be anybody
};

// The order in which an agent tries the endpoints of its rendezvous, turn after turn. It also has
// the words on those that failed. Pure: no I/O, clock or thread.
class EndpointTurns {
 public:
  // At least one.
  explicit EndpointTurns(std::vector<Endpoint> endpoints);

  // Forgets what failed. A turn goes through the list from `first` on, and then from its begin to
  // `first`.
  void begin(std::size_t first);

  // The endpoint whose turn it is: an index into the list.
  std::size_t current() const { return current_; }
  // Time limit of an attempt, beside others. For a single endpoint kLongestAttempt. For several
  // less in the first turns: one that drops packets must not hide the others.
  std::chrono::milliseconds attempt_limit() const;
  // current() failed, the next one comes. True: all have failed since the turn began.
  bool failed(const ConnectFailure& failure);

  // "a:29400", "a:29400 or b:29400".
  std::string names() const;
  // The last failure of each: "connection refused (…)"; if there are several "a:29400: connection
  // refused (…); b:29400: it is a standby". If none failed: "there was no time for an attempt".
  std::string failures() const;

  static constexpr std::chrono::milliseconds kLongestAttempt{5'000};
  static constexpr std::chrono::milliseconds kFirstAttempt{1'000};  // of several

 private:
  bool is_alone() const { return endpoints_.size() == 1; }
  std::string described(const ConnectFailure& failure) const;

  const std::vector<Endpoint> endpoints_;
  std::vector<std::string> failures_;  // by endpoint; empty: it wasn't tried
  std::size_t current_ = 0;
  std::size_t num_failed_ = 0;  // of the current turn
  int num_turns_ = 0;           // that are over
};

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

  // How the token is proved: in the first messages. One who only listens proves it in the request
  // for the upgrade, as for a page (security/proof.h).
  enum class Door { kMessages, kRequest };

  // Opens nothing yet.
  LinkConnector(boost::asio::io_context& io, Endpoint endpoint, LinkSecurity security,
                std::string path = kAgentPath, Door door = Door::kMessages);
  ~LinkConnector();  // as cancel()
  LinkConnector(const LinkConnector&) = delete;
  LinkConnector& operator=(const LinkConnector&) = delete;

  const Endpoint& endpoint() const;

  // Begins an attempt. It has failed if it has not come to an end by `until`. One at a time.
  void attempt(Clock::time_point until, Handlers handlers);
  // Drops the attempt, if there is one: no handler is called.
  void cancel();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // second owner: the operations that are under way
};

}  // namespace ddprun::membership
