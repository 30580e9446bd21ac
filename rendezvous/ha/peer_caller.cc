// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/peer_caller.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/membership/link_connector.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using membership::ConnectFailure;
using membership::FrameStream;
using membership::LinkConnector;
using std::chrono::milliseconds;

Call::Call(std::shared_ptr<FrameStream> frames, std::function<void(bool mirrors)> end)
    : frames_(std::move(frames)), end_(std::move(end)) {}

Call::~Call() {
  if (!frames_) return;
  frames_->close();
  end_(false);
}

std::shared_ptr<FrameStream> Call::mirror() {
  end_(true);
  return std::exchange(frames_, nullptr);
}

class PeerCaller::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, PeerCallerOptions options, Handlers handlers)
      : options_(std::move(options)),
        handlers_(std::move(handlers)),
        last_pause_(options_.last_pause),
        security_(options_.security),
        io_(io),
        timer_(io) {}

  void set_security(membership::LinkSecurity security) {
    security_ = std::move(security);
    is_connector_old_ = true;
  }

  void pause() {
    drop();
    state_ = State::kPaused;
  }

  void resume() {
    if (state_ != State::kPaused) return;
    away_.reset();
    call_later();
  }

  void call_now() {
    pause_ = milliseconds(0);
    if (state_ == State::kPaused || state_ == State::kWaits) call_after(milliseconds(0));
  }

  void set_last_pause(milliseconds last_pause) { last_pause_ = last_pause; }

  void destroy() {
    handlers_ = {};
    pause();
  }

 private:
  enum class State {
    kPaused,   // until its owner says so
    kWaits,    // until the next call
    kCalls,    // a connection is being made
    kGreets,   // it is open; hello was said
    kHandled,  // the owner has the Call
  };

  // What belongs to it, and comes later, is nobody's.
  void drop() {
    ++call_;
    if (connector_) connector_->cancel();
    timer_.cancel();
    if (frames_) frames_->close();
    frames_.reset();
  }

  // `handler`, unless the call has ended by then.
  template <typename Handler>
  auto guard(Handler handler) {
    return [weak = weak_from_this(), call = call_, handler]<typename... Args>(Args&&... args) {
      const auto self = weak.lock();
      if (self && self->call_ == call) handler(*self, std::forward<Args>(args)...);
    };
  }

  void call_later() {
    pause_ = std::clamp(pause_ * 2, std::min(options_.first_pause, last_pause_), last_pause_);
    call_after(pause_);
  }

  void call_after(milliseconds pause) {
    drop();
    state_ = State::kWaits;
    timer_.expires_after(pause);
    timer_.async_wait(guard([](Impl& self, boost::system::error_code error) {
      if (!error) self.call();
    }));
  }

  void call() {
    state_ = State::kCalls;
    if (std::exchange(is_connector_old_, false)) {
      connector_.emplace(io_, options_.peer, security_, kMirrorPath);
    }
    LinkConnector::Handlers handlers;
    handlers.opened = guard(
        [](Impl& self, std::shared_ptr<FrameStream> stream) { self.opened(std::move(stream)); });
    handlers.failed =
        guard([](Impl& self, const ConnectFailure& failure) { self.failed(failure); });
    connector_->attempt(Clock::now() + options_.attempt_limit, std::move(handlers));
  }

  void failed(const ConnectFailure& failure) {
    switch (failure.kind) {
      case ConnectFailure::Kind::kAway:
        return lose(failure.nothing_listens ? Away::Kind::kNothingListens : Away::Kind::kSilent,
                    concat("is away: ", failure.what));
      case ConnectFailure::Kind::kStandby:
        return lose(Away::Kind::kRefused, "stands by, and is not one of a pair");
      case ConnectFailure::Kind::kNoRendezvous:
        return lose(Away::Kind::kRefused,
                    concat("is not one of a pair, or no ddprund of this version: ", failure.what));
      case ConnectFailure::Kind::kUntrusted:
        return lose(Away::Kind::kRefused, failure.what);
    }
  }

  void opened(std::shared_ptr<FrameStream> stream) {
    state_ = State::kGreets;
    frames_ = std::move(stream);
    frames_->limit_messages(kMaxMirrorTextBytes);
    FrameStream::Handlers handlers;
    handlers.frame = guard([](Impl& self, std::string_view text) { self.received(text); });
    handlers.ended = guard([](Impl& self, const std::string& why) {
      if (self.state_ != State::kGreets) return;
      self.lose(Away::Kind::kSilent, concat("is away: it ended the call: ", why));
    });
    frames_->start(std::move(handlers));
    mirror::Hello hello;
    hello.state = options_.state();
    frames_->send(mirror::encode(mirror::CallerMessage(hello)));
    timer_.expires_after(options_.answer_limit);
    timer_.async_wait(guard([](Impl& self, boost::system::error_code error) {
      if (error || self.state_ != State::kGreets) return;
      self.lose(Away::Kind::kSilent, concat("is away: it took the call, and said nothing in ",
                                            self.options_.answer_limit.count(), " ms"));
    }));
  }

  void received(std::string_view text) {
    if (state_ != State::kGreets) return;  // whoever goes on with the call will see
    try {
      const auto message = mirror::decode_called_message(text);
      if (const auto* refused = std::get_if<mirror::Refused>(&message)) {
        return lose(Away::Kind::kRefused,
                    concat("refused this ddprund: ", one_line(refused->reason)));
      }
      const auto* hello = std::get_if<mirror::Hello>(&message);
      if (hello == nullptr) throw Error(ErrorCode::kProtocol, "its first message is no hello");
      if (hello->version != kMirrorVersion) {
        return lose(Away::Kind::kRefused,
                    concat("speaks version ", hello->version,
                           " of the mirror's protocol, and this "
                           "ddprund version ",
                           kMirrorVersion, ": install the same ddprund on both"));
      }
      met(hello->state);
    } catch (const Error& error) {
      lose(Away::Kind::kRefused, concat("makes no sense: ", error.what()));
    }
  }

  void met(const PairState& theirs) {
    state_ = State::kHandled;
    timer_.cancel();
    away_.reset();
    Call call(std::exchange(frames_, nullptr),
              guard([](Impl& self, bool mirrors) { mirrors ? self.pause() : self.call_later(); }));
    const auto handler = handlers_.met;  // a copy: it may destroy this
    handler(theirs, std::move(call));
  }

  void lose(Away::Kind kind, const std::string& what) {
    call_later();
    const Away away{kind, what};
    if (std::exchange(away_, away) == away) return;
    const auto handler = handlers_.away;
    if (handler) handler(away);
  }

  // Constant after construction.
  const PeerCallerOptions options_;

  Handlers handlers_;
  milliseconds last_pause_;
  membership::LinkSecurity security_;
  asio::io_context& io_;
  std::optional<LinkConnector> connector_;  // of the first call on
  bool is_connector_old_ = true;            // security_ is newer
  asio::steady_timer timer_;                // until the next call; for its answer
  State state_ = State::kPaused;
  std::uint64_t call_ = 0;               // counts them
  std::shared_ptr<FrameStream> frames_;  // second owner: its operations
  milliseconds pause_{0};
  std::optional<Away> away_;  // as the last call had it
};

PeerCaller::PeerCaller(asio::io_context& io, PeerCallerOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(handlers))) {
  impl_->call_now();
}

PeerCaller::~PeerCaller() { impl_->destroy(); }

void PeerCaller::pause() { impl_->pause(); }
void PeerCaller::resume() { impl_->resume(); }
void PeerCaller::call_now() { impl_->call_now(); }
void PeerCaller::set_security(membership::LinkSecurity security) {
  impl_->set_security(std::move(security));
}
void PeerCaller::set_last_pause(milliseconds last_pause) { impl_->set_last_pause(last_pause); }

}  // namespace ddprun::ha
