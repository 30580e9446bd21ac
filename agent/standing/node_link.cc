// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/node_link.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/wire/frame_stream.h"
#include "rendezvous/wire/keep_alive.h"
#include "rendezvous/wire/link_connector.h"

namespace ddprun::gangs {

namespace asio = boost::asio;
using membership::ConnectFailure;
using membership::FrameStream;
using membership::LinkConnector;
using std::chrono::milliseconds;

namespace {
constexpr milliseconds kFirstPause{20}, kLastPause{2'000};
constexpr milliseconds kWelcomeLimit{10'000};  // from hello to welcome
}  // namespace

class NodeLink::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, std::vector<Endpoint> endpoints,
       const membership::LinkSecurity& security, Handlers handlers)
      : io_(io), handlers_(std::move(handlers)), turns_(endpoints), timer_(io), ping_timer_(io) {
    for (Endpoint& endpoint : endpoints) {
      connectors_.push_back(
          std::make_unique<LinkConnector>(io, std::move(endpoint), security, kNodePath));
    }
  }

  void begin() { attempt_after(milliseconds(0)); }

  void use(const membership::LinkSecurity& security) {
    if (!frames_) drop();
    for (auto& connector : connectors_) {
      connector = std::make_unique<LinkConnector>(io_, connector->endpoint(), security, kNodePath);
    }
    if (!frames_) attempt_after(milliseconds(0));
  }

  void send(const NodeMessage& message) {
    if (frames_) frames_->send(encode(message));
  }

  void destroy() {
    handlers_ = {};
    drop();
  }

 private:
  // Ends all operations; their late results are ignored (guard).
  void drop() {
    ++generation_;
    timer_.cancel();
    ping_timer_.cancel();
    for (const auto& connector : connectors_) connector->cancel();
    if (frames_) frames_->close();
    frames_.reset();
  }

  template <typename Handler>
  auto guard(Handler handler) {
    return [weak = weak_from_this(), generation = generation_,
            handler]<typename... Args>(Args&&... args) {
      const auto self = weak.lock();
      if (self && self->generation_ == generation) handler(*self, std::forward<Args>(args)...);
    };
  }

  void attempt_after(Clock::duration pause) {
    run_after(timer_, pause, guard([](Impl& self) { self.attempt(); }));
  }

  void attempt() {
    LinkConnector::Handlers handlers;
    handlers.opened = guard(
        [](Impl& self, std::shared_ptr<FrameStream> stream) { self.opened(std::move(stream)); });
    handlers.failed =
        guard([](Impl& self, const ConnectFailure& failure) { self.attempt_failed(failure); });
    connectors_[turns_.current()]->attempt(Clock::now() + turns_.attempt_limit(),
                                           std::move(handlers));
  }

  // Gives up only if a token or certificate doesn't match, since only a rendezvous reports that.
  // Other answers may be temporary, such as a proxy's while somebody restarts its ddprund. After a
  // welcome any answer may be temporary.
  void attempt_failed(const ConnectFailure& failure) {
    const Endpoint& endpoint = connectors_[turns_.current()]->endpoint();
    const bool is_definite = failure.kind == ConnectFailure::Kind::kUntrusted && !failure.no_tls;
    const bool turn_is_over = turns_.failed(failure);
    drop();
    if (is_definite && !was_welcome_) {
      return handlers_.failed(concat("the rendezvous at ", to_string(endpoint), " ", failure.what));
    }
    if (!turn_is_over) return attempt();
    pause();
    say_away(turns_.failures());
  }

  void pause() {
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLastPause);
    attempt_after(pause_);
  }

  void say_away(const std::string& why) {
    if (std::exchange(is_away_, true)) return;
    const auto away = handlers_.away;  // a copy, since the call may destroy this object
    if (away) away(why);
  }

  void opened(std::shared_ptr<FrameStream> stream) {
    ++generation_;
    frames_ = std::move(stream);
    FrameStream::Handlers handlers;
    handlers.frame = guard([](Impl& self, std::string_view text) { self.received(text); });
    handlers.pong = guard([](Impl& self, std::string_view payload) {
      self.keep_alive_.ponged(payload, Clock::now());
    });
    handlers.ended = guard([](Impl& self, const std::string& why) { self.down(why); });
    frames_->start(std::move(handlers));
    keep_alive_.opened(Clock::now());
    run_after(timer_, kWelcomeLimit,
              guard([](Impl& self) { self.down("it did not answer the hello"); }));
    const auto opened = handlers_.opened;
    if (opened) opened();
  }

  void received(std::string_view text) {
    std::optional<QueueMessage> message;
    try {
      message = decode_queue_message(text);
    } catch (const Error& error) {
      return down(error.what());
    }
    if (const auto* refused = variants::get_if<NodeRefused>(&*message)) {
      return turned_down(concat("refused this agent: ", one_line(refused->reason)),
                         refused->lasting);
    }
    if (const auto* welcome = variants::get_if<Welcome>(&*message)) {
      if (welcome->protocol < kNodeProtocols.oldest || welcome->protocol > kNodeProtocols.newest) {
        return turned_down(concat("speaks version ", welcome->protocol,
                                  " of the standing agents' protocol, this agent ",
                                  to_string(kNodeProtocols), ": install the same ddprun on both"));
      }
      timer_.cancel();
      was_welcome_ = true;
      is_away_ = false;
      pause_ = milliseconds(0);
      const milliseconds silence(std::clamp<std::int64_t>(welcome->silence_ms, 100, 600'000));
      keep_alive_.set(silence, silence / 3);
      ping_and_watch();
    }
    const auto handler = handlers_.message;
    if (handler) handler(*message);
  }

  void turned_down(const std::string& what, bool is_lasting = true) {
    const std::string why = concat("the rendezvous at ",
                                   to_string(connectors_[turns_.current()]->endpoint()), ' ', what);
    if (!is_lasting || was_welcome_) return down(why);
    drop();
    handlers_.failed(why);
  }

  void ping_and_watch() {
    const Clock::time_point now = Clock::now();
    if (keep_alive_.is_silent(now)) {
      return down(concat("nothing was heard for ", keep_alive_.timeout()->count(), " ms"));
    }
    frames_->ping(keep_alive_.ping(now));
    run_at(ping_timer_, keep_alive_.next(now), guard([](Impl& self) { self.ping_and_watch(); }));
  }

  void down(const std::string& why) {
    drop();
    pause();
    say_away(why);
  }

  asio::io_context& io_;
  Handlers handlers_;
  std::vector<std::unique_ptr<LinkConnector>> connectors_;
  membership::EndpointTurns turns_;
  asio::steady_timer timer_;  // for the next attempt, or for the welcome
  asio::steady_timer ping_timer_;
  membership::KeepAlive keep_alive_;
  std::uint64_t generation_ = 0;
  std::shared_ptr<FrameStream> frames_;  // shared with its operations
  milliseconds pause_{0};
  bool was_welcome_ = false;
  bool is_away_ = false;  // the owner was told that it is away
};

NodeLink::NodeLink(asio::io_context& io, std::vector<Endpoint> endpoints,
                   const membership::LinkSecurity& security, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(endpoints), security, std::move(handlers))) {
  impl_->begin();
}

NodeLink::~NodeLink() { impl_->destroy(); }

void NodeLink::use(const membership::LinkSecurity& security) { impl_->use(security); }

void NodeLink::send(const NodeMessage& message) { impl_->send(message); }

}  // namespace ddprun::gangs
