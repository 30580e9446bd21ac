// SPDX-License-Identifier: Apache-2.0
// Calls the other one of a pair, for ever, and tells what it heard: how that one is doing, or that
// it is away (docs/ha-standby.md, "They meet"). What follows from it is its owner's affair. io
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/endpoint.h"
#include "rendezvous/ha/pair_state.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::ha {

struct PeerCallerOptions {
  Endpoint peer;
  membership::LinkSecurity security;
  std::function<PairState()> state;  // this side's, asked at the moment of each hello
  // Between the end of a call and the next one; doubles with each.
  std::chrono::milliseconds first_pause{10}, last_pause{500};
  std::chrono::milliseconds attempt_limit{2'000};  // until the connection is open and proved
  std::chrono::milliseconds answer_limit{2'000};   // from then until its hello
};

// Why a call came to nothing.
struct Away {
  enum class Kind {
    kNothingListens,  // its host is there, and says that no ddprund is
    kSilent,          // no answer, no way there, or a connection that ended early
    kRefused,         // it can't be talked to: versions, tokens, TLS, something else at that port
  };
  Kind kind = Kind::kSilent;
  std::string what;  // completes "HOST:PORT …": "is away: connection refused (…)"

  friend bool operator==(const Away&, const Away&) = default;
};

// A connection on which both have said hello. Not after its PeerCaller has gone.
class Call {
 public:
  Call(std::shared_ptr<membership::FrameStream> frames, std::function<void(bool mirrors)> end);
  Call(Call&&) = default;
  Call& operator=(Call&&) = delete;
  ~Call();  // where mirror() was not called: closes it; the other one is called again later

  // The open stream, for MirrorClient::mirror(). The caller pauses, as by pause().
  std::shared_ptr<membership::FrameStream> mirror();

 private:
  std::shared_ptr<membership::FrameStream> frames_;  // second owner: its operations
  std::function<void(bool mirrors)> end_;
};

class PeerCaller {
 public:
  // Called from the io context, never from inside a call of this class. Either may destroy it.
  struct Handlers {
    std::function<void(const PairState& theirs, Call call)> met;
    std::function<void(const Away&)> away;  // each that differs from the one before it
  };

  // Begins at once.
  PeerCaller(boost::asio::io_context& io, PeerCallerOptions options, Handlers handlers);
  ~PeerCaller();  // no call follows
  PeerCaller(const PeerCaller&) = delete;
  PeerCaller& operator=(const PeerCaller&) = delete;

  // Drops the call under way, and calls nobody until resume() or call_now().
  void pause();
  // Goes on where it paused: the next call comes after the next pause.
  void resume();
  // At once; the pauses begin with the first one again. Does nothing while a call is under way.
  void call_now();
  void set_last_pause(std::chrono::milliseconds last_pause);
  // From the next call on.
  void set_security(membership::LinkSecurity security);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owner: what is under way
};

}  // namespace ddprun::ha
