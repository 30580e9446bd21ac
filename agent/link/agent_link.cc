// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_link.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <concepts>
#include <cstddef>
#include <utility>

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/wire/frame_stream.h"
#include "rendezvous/wire/keep_alive.h"

namespace ddprun::membership {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kFirstBackoff{5};
constexpr milliseconds kLastBackoff{500};
constexpr milliseconds kCloseLimit{1'000};

std::string numeric(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

std::string time_text(Clock::duration time) {
  const auto ms = std::chrono::duration_cast<milliseconds>(time).count();
  return ms < 10'000 ? concat(ms, " ms") : concat((ms + 500) / 1000, " s");
}

}  // namespace

using LinkConnectors = std::vector<std::unique_ptr<LinkConnector>>;

// Tries the other endpoints while the open connection is quiet. Only the leader takes an agent in,
// so an endpoint that does has replaced the quiet one. Held by shared_ptr; the timers' handlers
// hold it weakly.
class EndpointProbe : public std::enable_shared_from_this<EndpointProbe> {
  // Wraps a handler so that it does nothing once the generation has changed or this object is gone.
  template <typename Handler>
  auto guard(Handler handler) {
    return [
      weak = weak_from_this(), generation = generation_, handler = std::move(handler)
    ]<typename... Args>(Args && ... args) mutable requires std::invocable<Handler&, Args...> {
      const auto self = weak.lock();
      if (self && self->generation_ == generation) handler(std::forward<Args>(args)...);
    };
  }

 public:
  // Called from the io context, never from inside a call of this class. The probe has ended then.
  using Found = std::function<void(std::size_t index, std::shared_ptr<FrameStream> stream)>;

  // `connectors` and `keep_alive` are the owner's, and live at least until stop().
  EndpointProbe(asio::io_context& io, LinkConnectors& connectors, const KeepAlive& keep_alive)
      : connectors_(connectors), keep_alive_(keep_alive), quiet_timer_(io) {
    for (std::size_t i = 0; i < connectors.size(); ++i) pauses_.emplace_back(io);
    lengths_.resize(connectors.size());
  }

  // Begins for an open connection to endpoint `open_at` whose keep-alive time is set. From
  // quiet_at() to silent_at() all others are tried side by side, each again after 10 ms … 250 ms.
  void watch(std::size_t open_at, Found found) {
    stop();
    open_at_ = open_at;
    found_ = std::move(found);
    if (connectors_.size() > 1) wait_for_quiet();
  }

  // Called when a ping on the open connection was answered: it isn't quiet any more.
  void answered() {
    if (!looking_) return;  // quiet_timer_ handles it when it fires
    give_up_attempts();
    wait_for_quiet();
  }

  // Stops all attempts: the connectors are free again, and nothing is called any more.
  void stop() {
    give_up_attempts();
    quiet_timer_.cancel();
    found_ = nullptr;
  }

  static constexpr milliseconds kLongestAttempt{1'000};
  static constexpr milliseconds kFirstPause{10};
  static constexpr milliseconds kLastPause{250};

 private:
  void wait_for_quiet() {
    run_at(quiet_timer_, keep_alive_.quiet_at(),
           guard([this] { Clock::now() < keep_alive_.quiet_at() ? wait_for_quiet() : look(); }));
  }

  void look() {
    looking_ = true;
    std::fill(lengths_.begin(), lengths_.end(), kFirstPause);
    for (std::size_t i = 0; i < connectors_.size(); ++i) {
      if (i != open_at_) attempt(i);
    }
  }

  void attempt(std::size_t index) {
    const Clock::time_point now = Clock::now();
    if (keep_alive_.is_silent(now)) return;  // the owner ends the connection
    LinkConnector::Handlers handlers;
    handlers.opened = guard([this, index](std::shared_ptr<FrameStream> stream) {
      const auto found = std::move(found_);
      stop();
      found(index, std::move(stream));
    });
    handlers.failed = guard([this, index](const ConnectFailure&) { attempt_later(index); });
    connectors_[index]->attempt(std::min(keep_alive_.silent_at(), now + kLongestAttempt),
                                std::move(handlers));
  }

  void attempt_later(std::size_t index) {
    auto& pause = pauses_[index];
    run_after(pause, std::exchange(lengths_[index], std::min(lengths_[index] * 2, kLastPause)),
              guard([this, index] { attempt(index); }));
  }

  void give_up_attempts() {
    ++generation_;
    if (!std::exchange(looking_, false)) return;
    for (std::size_t i = 0; i < connectors_.size(); ++i) {
      pauses_[i].cancel();
      if (i != open_at_) connectors_[i]->cancel();
    }
  }

  LinkConnectors& connectors_;
  const KeepAlive& keep_alive_;
  asio::steady_timer quiet_timer_;
  std::vector<asio::steady_timer> pauses_;  // by endpoint
  std::vector<milliseconds> lengths_;       // of the next pauses
  std::size_t open_at_ = 0;
  bool looking_ = false;
  std::uint64_t generation_ = 0;
  Found found_;
};

class AgentLink::Impl : public std::enable_shared_from_this<Impl> {
  enum class State { kIdle, kConnecting, kOpen };

  struct Connection {
    std::size_t endpoint = 0;                       // its index
    std::shared_ptr<FrameStream> stream = nullptr;  // null: none; shared with its handlers
  };

  // Wraps a handler so that it does nothing once the generation has changed. It keeps this object
  // alive.
  template <typename Handler>
  auto guard(Handler handler) {
    return [
      self = shared_from_this(), generation = generation_, handler = std::move(handler)
    ]<typename... Args>(Args && ... args) mutable requires std::invocable<Handler&, Args...> {
      if (self->generation_ == generation) handler(std::forward<Args>(args)...);
    };
  }

 public:
  Impl(asio::io_context& io, std::vector<Endpoint> endpoints,
       std::function<void(const AgentEvent&)> on_event,
       std::function<void(const std::string&)> on_failed_attempt, const LinkSecurity& security)
      : on_event_(std::move(on_event)),
        on_failed_attempt_(std::move(on_failed_attempt)),
        turns_(endpoints),
        timer_(io),
        ping_timer_(io) {
    for (Endpoint& endpoint : endpoints) {
      connectors_.push_back(std::make_unique<LinkConnector>(io, std::move(endpoint), security));
    }
    probe_ = std::make_shared<EndpointProbe>(io, connectors_, keep_alive_);
  }

  void connect(milliseconds timeout) {
    if (state_ != State::kIdle) return;
    state_ = State::kConnecting;
    begun_ = Clock::now();
    deadline_ = begun_ + timeout;
    num_attempts_ = 0;
    said_silence_ = false;
    const bool was_welcome = std::exchange(was_welcome_, false);
    // A connection that was welcome resets the back-off. One that was ended at once doesn't.
    if (was_welcome) backoff_ = milliseconds{0};
    // An endpoint that took the connection and did not welcome this node is not tried first again.
    const bool was_in_vain = std::exchange(was_open_, false) && !was_welcome;
    turns_.begin(was_in_vain ? (open_at_ + 1) % connectors_.size() : welcomed_at_);
    ++generation_;
    successor_.stream ? adopt_successor() : wait_and_attempt();
  }

  void send(const AgentEnvelope& envelope) {
    if (frames_) frames_->send(encode(envelope));
  }

  void on_binary(std::function<void(std::string_view)> on_binary) {
    on_binary_ = std::move(on_binary);
  }

  void send_binary(std::string frame) {
    if (frames_) frames_->send_binary(std::move(frame));
  }

  void set_keep_alive(milliseconds timeout, milliseconds interval) {
    keep_alive_.set(timeout, interval);
    was_welcome_ = has_been_welcome_ = true;
    if (!frames_) return;
    welcomed_at_ = open_at_;
    watch();
  }

  void close() {
    reset();
    if (frames_) frames_->close_when_sent(kCloseLimit);
    frames_.reset();
  }

  void destroy() {
    close();
    on_event_ = nullptr;
    on_failed_attempt_ = nullptr;
    on_binary_ = nullptr;
  }

 private:
  // ---- connecting ----

  void wait_and_attempt() {
    const Clock::time_point now = Clock::now();
    const auto wait = std::min<Clock::duration>(backoff_, deadline_ - now);
    backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLastBackoff);
    run_at(timer_, now + std::max(wait, Clock::duration::zero()), guard([this] {
             if (Clock::now() >= deadline_ && num_attempts_ > 0) {
               give_up();
             } else {
               attempt();
             }
           }));
  }

  void attempt() {
    ++num_attempts_;
    const auto num_endpoints = static_cast<Clock::rep>(connectors_.size());
    Clock::duration limit = turns_.attempt_limit();
    if (const auto silence = keep_alive_.timeout()) {
      // All endpoints must be asked within the keep-alive time: one may show that there is no
      // silence.
      limit = std::min<Clock::duration>(
          limit, num_endpoints == 1 ? *silence : *silence / (num_endpoints + 1));
    }
    if (num_endpoints > 1) limit = std::min(limit, (deadline_ - begun_) / num_endpoints);
    LinkConnector::Handlers handlers;
    handlers.opened = guard([this, at = turns_.current()](std::shared_ptr<FrameStream> stream) {
      opened({at, std::move(stream)});
    });
    handlers.failed = guard([this](const ConnectFailure& failure) { failed(failure); });
    connectors_[turns_.current()]->attempt(std::min(deadline_, Clock::now() + limit),
                                           std::move(handlers));
  }

  // If this node was welcome before, a definite answer may come from another process while the
  // rendezvous is away. Otherwise it is final: another attempt would not change it.
  void failed(const ConnectFailure& failure) {
    using Kind = ConnectFailure::Kind;
    const std::size_t at = turns_.current();
    const bool turn_is_over = turns_.failed(failure);
    if (!has_been_welcome_ && failure.kind == Kind::kNoRendezvous) return give_up();
    if (!has_been_welcome_ && failure.kind == Kind::kUntrusted) {
      reset();
      return emit(agent_event::LinkFailed{
          concat("the rendezvous at ", to_string(connectors_[at]->endpoint()), " ", failure.what),
          true});
    }
    attempt_failed(failure.sign_of_life, turn_is_over);
  }

  void opened(Connection connection) {
    ++generation_;
    state_ = State::kOpen;
    was_open_ = true;
    open_at_ = connection.endpoint;
    frames_ = std::move(connection.stream);
    last_sign_ = Clock::now();
    keep_alive_.opened(last_sign_);
    boost::system::error_code error;
    auto& socket = frames_->wire().socket();
    const auto local = socket.local_endpoint(error);
    const auto peer = socket.remote_endpoint(error);
    FrameStream::Handlers handlers;
    // The handlers own this link until the stream is closed, which drops them.
    const auto self = shared_from_this();
    handlers.frame = [self](std::string_view text) { self->received(text); };
    if (on_binary_) {
      handlers.binary = [self](std::string_view bytes) { self->received_binary(bytes); };
    }
    handlers.pong = [self](std::string_view payload) { self->ponged(payload); };
    handlers.ended = [self](const std::string& reason) { self->down(false, reason); };
    frames_->start(std::move(handlers));
    // A leader that welcomed this node before may fall silent before the next welcome. Then another
    // endpoint may lead.
    if (keep_alive_.timeout()) watch();
    emit(agent_event::LinkUp{numeric(local.address()), numeric(peer.address()),
                             connectors_[open_at_]->endpoint()});
  }

  void attempt_failed(bool sign_of_life, bool turn_is_over) {
    ++generation_;
    const Clock::time_point now = Clock::now();
    if (sign_of_life) last_sign_ = now;
    if (now >= deadline_) return give_up();
    turn_is_over ? wait_and_attempt() : attempt();
    const std::string why = turns_.failures();
    const auto silence = keep_alive_.timeout();
    if (silence && !said_silence_ && now - last_sign_ >= *silence) {
      said_silence_ = true;
      emit(agent_event::LinkDown{true, why});
    }
    const auto on_failed_attempt = on_failed_attempt_;  // a copy, as in emit()
    if (on_failed_attempt && turn_is_over) on_failed_attempt(why);
  }

  void give_up() {
    reset();
    const bool is_alone = connectors_.size() == 1;
    emit(agent_event::LinkFailed{concat(
        "can't reach the rendezvous at ", turns_.names(), ": tried ",
        counted(num_attempts_, "time"), " in ", time_text(Clock::now() - begun_),
        "; last: ", turns_.failures(), ". Check that ",
        is_alone ? "ddprun or ddprund runs on that host with this endpoint and that the port "
                   "is open"
                 : "a ddprund runs on each of these hosts with this endpoint and that its "
                   "port is open")});
  }

  // ---- open ----

  void received(std::string_view text) {
    RendezvousEnvelope envelope;
    try {
      envelope = decode_rendezvous_message(text);
    } catch (const Error& error) {
      down(false, error.what());
      return;
    }
    emit(agent_event::LinkMessage{std::move(envelope)});
  }

  void received_binary(std::string_view bytes) {
    try {
      on_binary_(bytes);
    } catch (const Error& error) {
      down(false, error.what());
    }
  }

  void ponged(std::string_view payload) {
    last_sign_ = Clock::now();
    const auto news = keep_alive_.ponged(payload, last_sign_);
    if (!news) return;
    if (variants::holds_alternative<agent_event::LinkAnswered>(*news)) probe_->answered();
    emit(*news);
  }

  void watch() {
    ping_and_watch();
    if (state_ != State::kOpen) return;
    probe_->watch(open_at_, guard([this](std::size_t index, std::shared_ptr<FrameStream> stream) {
                    found_another({index, std::move(stream)});
                  }));
  }

  void ping_and_watch() {
    const Clock::time_point now = Clock::now();
    if (keep_alive_.is_silent(now)) {
      return down(true, concat("nothing was heard for ", keep_alive_.timeout()->count(), " ms"));
    }
    frames_->ping(keep_alive_.ping(now));
    run_at(ping_timer_, keep_alive_.next(now), guard([this] { ping_and_watch(); }));
  }

  // Called when another endpoint has taken this node's connection while the open one was quiet.
  void found_another(Connection successor) {
    const bool silence = keep_alive_.is_silent(Clock::now());
    std::string reason =
        concat("nothing was heard for ", keep_alive_.timeout()->count() / 2, " ms, and ",
               to_string(connectors_[successor.endpoint]->endpoint()), " has taken its place");
    down(silence, std::move(reason), std::move(successor));
  }

  // Opens the successor, for the connect() that follows.
  void adopt_successor() {
    run_at(timer_, begun_, guard([this] {
             Connection successor = std::exchange(successor_, Connection());
             if (!successor.stream->is_closed()) return opened(std::move(successor));
             wait_and_attempt();
           }));
  }

  void down(bool silence, std::string reason) { down(silence, std::move(reason), Connection()); }

  void down(bool silence, std::string reason, Connection successor) {
    if (state_ != State::kOpen) return;
    reset();
    successor_ = std::move(successor);
    if (frames_ && silence) {  // the rendezvous may hear it all the same
      frames_->send(encode(AgentEnvelope{0, 0, CutOff{}}));
      frames_->close_when_sent(kCloseLimit);
    } else if (frames_) {
      frames_->close();
    }
    frames_.reset();
    emit(agent_event::LinkDown{silence, std::move(reason)});
  }

  // ---- helpers ----

  // Goes back to kIdle. Handlers of unfinished operations do nothing any more.
  void reset() {
    ++generation_;
    timer_.cancel();
    ping_timer_.cancel();
    probe_->stop();
    for (const auto& connector : connectors_) connector->cancel();
    if (successor_.stream) successor_.stream->close();
    successor_.stream.reset();
    state_ = State::kIdle;
  }

  void emit(const AgentEvent& event) {
    // Calls a copy, since the handler may destroy this link.
    const auto on_event = on_event_;
    if (on_event) on_event(event);
  }

  // Used on the io thread only.
  std::function<void(const AgentEvent&)> on_event_;
  std::function<void(const std::string&)> on_failed_attempt_;
  std::function<void(std::string_view)> on_binary_;  // constant once connect() was called
  LinkConnectors connectors_;                        // by endpoint
  EndpointTurns turns_;
  std::shared_ptr<EndpointProbe> probe_;  // shared with its handlers, for a call
  asio::steady_timer timer_;              // for the back-off
  asio::steady_timer ping_timer_;
  State state_ = State::kIdle;
  std::uint64_t generation_ = 0;
  std::shared_ptr<FrameStream> frames_;  // set in kOpen; shared with its handlers
  std::size_t open_at_ = 0;              // frames_' endpoint
  std::size_t welcomed_at_ = 0;          // the endpoint of the last welcome connection
  Connection successor_;                 // found by probe_, used by the next connect()
  Clock::time_point begun_, deadline_;
  std::size_t num_attempts_ = 0;
  milliseconds backoff_{0};
  bool was_open_ = false;  // since the last connect()
  bool was_welcome_ = false;
  bool has_been_welcome_ = false;  // on an earlier connection
  bool said_silence_ = false;
  KeepAlive keep_alive_;
  Clock::time_point last_sign_;  // when the rendezvous last showed that it lives
};

AgentLink::AgentLink(asio::io_context& io, std::vector<Endpoint> endpoints,
                     std::function<void(const AgentEvent&)> on_event,
                     std::function<void(const std::string&)> on_failed_attempt,
                     const LinkSecurity& security)
    : impl_(std::make_shared<Impl>(io, std::move(endpoints), std::move(on_event),
                                   std::move(on_failed_attempt), security)) {}

AgentLink::~AgentLink() { impl_->destroy(); }
void AgentLink::connect(milliseconds timeout) { impl_->connect(timeout); }
void AgentLink::send(const AgentEnvelope& envelope) { impl_->send(envelope); }
void AgentLink::on_binary(std::function<void(std::string_view)> on_binary) {
  impl_->on_binary(std::move(on_binary));
}
void AgentLink::send_binary(std::string frame) { impl_->send_binary(std::move(frame)); }
void AgentLink::set_keep_alive(milliseconds timeout, milliseconds interval) {
  impl_->set_keep_alive(timeout, interval);
}
void AgentLink::close() { impl_->close(); }

}  // namespace ddprun::membership
