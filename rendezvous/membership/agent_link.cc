// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/agent_link.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/websocket/error.hpp>
#include <concepts>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/name_lookup.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/frame_stream.h"
#include "rendezvous/membership/keep_alive.h"
#include "rendezvous/security/proof.h"

namespace ddprun::membership {

namespace asio = boost::asio;
namespace websocket = boost::beast::websocket;
using asio::ip::tcp;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kFirstBackoff{5};
constexpr milliseconds kLastBackoff{500};
constexpr milliseconds kAttemptLimit{5'000};  // resolve, connect and upgrade
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

class AgentLink::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, Endpoint endpoint, std::function<void(const AgentEvent&)> on_event,
       std::function<void(const std::string&)> on_failed_attempt, LinkSecurity security)
      : endpoint_(std::move(endpoint)),
        token_(std::move(security.token)),
        tls_(std::move(security.tls)),
        certificate_host_(std::move(security.certificate_host)),
        on_event_(std::move(on_event)),
        on_failed_attempt_(std::move(on_failed_attempt)),
        io_(io),
        lookup_door_(std::make_shared<LookupDoor>()),
        timer_(io),
        ping_timer_(io) {
    lookup_door_->io = &io;
  }

  void connect(milliseconds timeout) {
    if (state_ != State::kIdle) return;
    state_ = State::kConnecting;
    begun_ = Clock::now();
    deadline_ = begun_ + timeout;
    num_attempts_ = 0;
    last_failure_ = "there was no time for an attempt";
    said_silence_ = false;
    // A connection that was welcome resets the back-off; one that was ended at once doesn't.
    if (std::exchange(was_welcome_, false)) backoff_ = milliseconds{0};
    ++generation_;
    wait_and_attempt();
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
    if (frames_) ping_and_watch();
  }

  void close() {
    reset();
    if (frames_) frames_->close_when_sent(kCloseLimit);
    frames_.reset();
  }

  void destroy() {
    close();
    const std::lock_guard<std::mutex> lock(lookup_door_->mutex);
    lookup_door_->io = nullptr;
    on_event_ = nullptr;
    on_failed_attempt_ = nullptr;
    on_binary_ = nullptr;
  }

 private:
  enum class State { kIdle, kConnecting, kOpen };

  // Where a look-up's thread hands its answer in, for as long as there is somebody to take it.
  struct LookupDoor {
    std::mutex mutex;
    asio::io_context* io = nullptr;  // guarded by mutex
  };

  // `handler`, to be dropped when the generation has moved on. Keeps this object and the attempt's
  // stream alive.
  template <typename Handler>
  auto guard(Handler handler) {
    return [
      self = shared_from_this(), stream = opening_, generation = generation_,
      handler = std::move(handler)
    ]<typename... Args>(Args && ... args) mutable requires std::invocable<Handler&, Args...> {
      if (self->generation_ == generation) handler(std::forward<Args>(args)...);
    };
  }

  // ---- connecting ----

  void wait_and_attempt() {
    const Clock::time_point now = Clock::now();
    const auto wait = std::min<Clock::duration>(backoff_, deadline_ - now);
    backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLastBackoff);
    timer_.expires_at(now + std::max(wait, Clock::duration::zero()));
    timer_.async_wait(guard([this](boost::system::error_code error) {
      if (error) return;
      if (Clock::now() >= deadline_ && num_attempts_ > 0) {
        give_up();
      } else {
        attempt();
      }
    }));
  }

  void attempt() {
    ++generation_;
    ++num_attempts_;
    Clock::duration limit = kAttemptLimit;
    if (const auto silence = keep_alive_.timeout())
      limit = std::min<Clock::duration>(limit, *silence);
    timer_.expires_at(std::min(deadline_, Clock::now() + limit));
    timer_.async_wait(guard([this](boost::system::error_code error) {
      if (error) return;
      if (awaits_name_) {
        attempt_failed(name_trouble("no answer from the name service"), false);
        return;
      }
      attempt_failed(
          "no answer (the host is down, the address is wrong, or a firewall drops packets)", false);
    }));
    boost::system::error_code not_numeric;
    const auto address =
        asio::ip::make_address(endpoint_.host.empty() ? "127.0.0.1" : endpoint_.host, not_numeric);
    if (!not_numeric) {
      open_any({tcp::endpoint(address, endpoint_.port)});
      return;
    }
    awaits_name_ = true;
    look_name_up();
  }

  std::string name_trouble(const std::string& what) const {
    return concat("the name ", endpoint_.host, " can't be resolved (", what, ")");
  }

  // At most one at a time: it may take longer than an attempt, and then answers a later one.
  void look_name_up() {
    if (looking_up_) return;
    looking_up_ = true;
    try {
      look_up_in_background(endpoint_,
                            [door = lookup_door_, weak = weak_from_this()](NameLookup found) {
                              const std::lock_guard<std::mutex> lock(door->mutex);
                              if (door->io == nullptr) return;
                              asio::post(*door->io, [weak, found = std::move(found)] {
                                if (const auto self = weak.lock()) self->looked_up(found);
                              });
                            });
    } catch (const Error& error) {
      asio::post(io_, [weak = weak_from_this(), why = std::string(error.what())] {
        if (const auto self = weak.lock()) self->looked_up({{}, why});
      });
    }
  }

  void looked_up(const NameLookup& found) {
    looking_up_ = false;
    if (!std::exchange(awaits_name_, false)) return;
    if (found.addresses.empty()) {
      attempt_failed(name_trouble(found.failure), false);
      return;
    }
    std::vector<tcp::endpoint> targets;
    for (const SocketAddress& address : found.addresses) {
      tcp::endpoint& target = targets.emplace_back();
      target.resize(address.length);
      std::memcpy(target.data(), &address.storage, address.length);
    }
    // One that drops packets must not hide the others.
    const auto first = static_cast<std::ptrdiff_t>((num_attempts_ - 1) % targets.size());
    std::rotate(targets.begin(), targets.begin() + first, targets.end());
    open_any(targets);
  }

  void open_any(const std::vector<tcp::endpoint>& targets) {
    opening_ = std::make_shared<FrameStream>(
        tcp::socket(io_), FrameStream::Limits{kMaxMessageBytes, kMaxQueuedBytes});
    asio::async_connect(opening_->wire().socket(), targets,
                        guard([this](boost::system::error_code error, const tcp::endpoint&) {
                          if (error) {
                            connect_failed(error);
                          } else {
                            secure();
                          }
                        }));
  }

  void connect_failed(boost::system::error_code error) {
    if (error == asio::error::connection_refused) {
      attempt_failed("connection refused (nothing listens there)", true);
    } else {
      attempt_failed(error.message(), false);
    }
  }

  void secure() {
    boost::system::error_code ignored;
    opening_->wire().socket().set_option(tcp::no_delay(true), ignored);
    if (!tls_) return upgrade();
    std::string host = certificate_host_.empty() ? endpoint_.host : certificate_host_;
    if (host.empty()) host = "127.0.0.1";
    opening_->wire().async_connect_tls(tls_, host, guard([this](boost::system::error_code error) {
                                         error ? tls_failed(error) : upgrade();
                                       }));
  }

  void tls_failed(boost::system::error_code error) {
    const std::string trouble = opening_->wire().tls_trouble(error);
    if (trouble.empty() || error == asio::ssl::error::stream_truncated) {
      return attempt_failed("it ended the connection in the TLS handshake", false);
    }
    unproved("can't be trusted: " + trouble);
  }

  void upgrade() {
    opening_->stream().async_handshake(
        response_, to_string(endpoint_), "/v1/agent",
        guard([this](boost::system::error_code error) { upgraded(error); }));
  }

  void upgraded(boost::system::error_code error) {
    if (!error) {
      prove();
      return;
    }
    if (const std::string trouble = opening_->wire().tls_trouble(error);
        !trouble.empty() && error != asio::ssl::error::stream_truncated) {
      return unproved("ended TLS: " + trouble);
    }
    if (response_.find(security::kTlsHeader) != response_.end()) {
      return unproved("wants TLS: give this ddprun --tls-ca");
    }
    const bool dropped = error == asio::error::eof || error == asio::error::connection_reset ||
                         error == asio::ssl::error::stream_truncated ||
                         error == websocket::error::closed ||
                         error == boost::beast::http::error::end_of_stream;
    if (dropped) {
      attempt_failed("it took the connection and dropped it", is_anyone_taken_for_it());
      return;
    }
    // A definite answer of something else: trying again would not change it.
    const std::string what = error == websocket::error::upgrade_declined
                                 ? concat("it answered HTTP ", response_.result_int())
                                 : error.message();
    if (has_been_welcome_) {  // the rendezvous may only be away: something else answers for it
      return attempt_failed(concat("what listens there is no rendezvous (", what, ")"), false);
    }
    last_failure_ = concat("what listens there is not a ddprun rendezvous (", what, ")");
    give_up();
  }

  // Nothing of this node's job is said, and nothing that is heard obeyed, before both have the
  // same token.
  void prove() {
    const auto header = response_[security::kChallengeHeader];
    const std::string_view challenge(header.data(), header.size());
    if (!token_ && challenge.empty()) return opened();
    if (!token_) return unproved("wants a token: give this ddprun its --token-file");
    const auto proof = std::make_shared<security::AgentProof>(token_, opening_->wire().binding());
    std::string answer;
    try {
      answer = proof->answer(challenge);
    } catch (const Error& error) {
      return unproved(error.what());
    }
    opening_->limit_messages(security::kMaxProofBytes);
    FrameStream::Handlers handlers;
    handlers.frame = guard([this, proof](std::string_view frame) {
      try {
        proof->check(frame);
      } catch (const Error& error) {
        return unproved(error.what());
      }
      opening_->limit_messages(kMaxMessageBytes);
      opened();
    });
    handlers.ended = guard([this](const std::string& reason) {
      attempt_failed("it ended the connection before it proved its token: " + reason, false);
    });
    opening_->start(std::move(handlers));
    opening_->send(std::move(answer));
  }

  // `what` completes "the rendezvous at HOST:PORT …".
  void unproved(const std::string& what) {
    const std::string message = concat("the rendezvous at ", to_string(endpoint_), " ", what);
    if (has_been_welcome_) return attempt_failed(message, false);
    reset();
    emit(agent_event::LinkFailed{message, true});
  }

  void opened() {
    timer_.cancel();
    ++generation_;
    state_ = State::kOpen;
    frames_ = std::exchange(opening_, nullptr);
    last_sign_ = Clock::now();
    keep_alive_.opened(last_sign_);
    boost::system::error_code error;
    auto& socket = frames_->wire().socket();
    const auto local = socket.local_endpoint(error);
    const auto peer = socket.remote_endpoint(error);
    FrameStream::Handlers handlers;
    // They are dropped when the stream is closed, and so is this ownership.
    const auto self = shared_from_this();
    handlers.frame = [self](std::string_view text) { self->received(text); };
    if (on_binary_) {
      handlers.binary = [self](std::string_view bytes) { self->received_binary(bytes); };
    }
    handlers.pong = [self](std::string_view payload) { self->ponged(payload); };
    handlers.ended = [self](const std::string& reason) { self->down(false, reason); };
    frames_->start(std::move(handlers));
    emit(agent_event::LinkUp{numeric(local.address()), numeric(peer.address())});
  }

  void attempt_failed(std::string why, bool sign_of_life) {
    ++generation_;
    drop_attempt();
    last_failure_ = std::move(why);
    const Clock::time_point now = Clock::now();
    if (sign_of_life) last_sign_ = now;
    if (now >= deadline_) {
      give_up();
      return;
    }
    wait_and_attempt();
    const auto silence = keep_alive_.timeout();
    if (silence && !said_silence_ && now - last_sign_ >= *silence) {
      said_silence_ = true;
      emit(agent_event::LinkDown{true, last_failure_});
    }
    const auto on_failed_attempt = on_failed_attempt_;  // a copy, as in emit()
    if (on_failed_attempt) on_failed_attempt(last_failure_);
  }

  void give_up() {
    reset();
    emit(agent_event::LinkFailed{
        concat("can't reach the rendezvous at ", to_string(endpoint_), ": tried ", num_attempts_,
               num_attempts_ == 1 ? " time in " : " times in ", time_text(Clock::now() - begun_),
               "; last: ", last_failure_,
               ". Check that ddprun or ddprund runs on that host with this endpoint and that the "
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
    if (const auto news = keep_alive_.ponged(payload, last_sign_)) emit(*news);
  }

  void ping_and_watch() {
    const Clock::time_point now = Clock::now();
    if (keep_alive_.is_silent(now)) {
      down(true, concat("nothing was heard for ", keep_alive_.timeout()->count(), " ms"));
      return;
    }
    frames_->ping(keep_alive_.ping(now));
    ping_timer_.expires_at(keep_alive_.next(now));
    ping_timer_.async_wait(guard([this](boost::system::error_code error) {
      if (!error) ping_and_watch();
    }));
  }

  void down(bool silence, std::string reason) {
    if (state_ != State::kOpen) return;
    reset();
    if (frames_ && silence) {  // it may be heard all the same
      frames_->send(encode(AgentEnvelope{0, 0, CutOff{}}));
      frames_->close_when_sent(kCloseLimit);
    } else if (frames_) {
      frames_->close();
    }
    frames_.reset();
    emit(agent_event::LinkDown{silence, std::move(reason)});
  }

  // ---- helpers ----

  // Else only who proved itself shows that the rendezvous' host is there.
  bool is_anyone_taken_for_it() const { return !token_ && !tls_; }

  void drop_attempt() {
    awaits_name_ = false;
    if (opening_) opening_->close();
    opening_.reset();
  }

  // To kIdle; handlers of what was under way do nothing any more.
  void reset() {
    ++generation_;
    timer_.cancel();
    ping_timer_.cancel();
    drop_attempt();
    state_ = State::kIdle;
  }

  void emit(const AgentEvent& event) {
    // A copy: the handler may destroy this link.
    const auto on_event = on_event_;
    if (on_event) on_event(event);
  }

  // Constant after construction.
  const Endpoint endpoint_;
  const std::shared_ptr<const Secret> token_;  // second owners: its other users; null: none
  const security::TlsContext tls_;             // likewise
  const std::string certificate_host_;         // empty: endpoint_'s

  // io thread only.
  std::function<void(const AgentEvent&)> on_event_;
  std::function<void(const std::string&)> on_failed_attempt_;
  std::function<void(std::string_view)> on_binary_;  // constant once connect() was called
  asio::io_context& io_;
  const std::shared_ptr<LookupDoor> lookup_door_;  // second owner: a look-up's thread
  asio::steady_timer timer_;                       // back-off, then the attempt's limit
  asio::steady_timer ping_timer_;
  State state_ = State::kIdle;
  std::uint64_t generation_ = 0;
  std::shared_ptr<FrameStream> opening_;  // second owner: its handlers
  std::shared_ptr<FrameStream> frames_;   // likewise; set in kOpen
  websocket::response_type response_;
  bool awaits_name_ = false;  // the attempt under way has no addresses yet
  bool looking_up_ = false;   // a look-up is under way, for this attempt or an earlier one
  Clock::time_point begun_, deadline_;
  std::size_t num_attempts_ = 0;
  milliseconds backoff_{0};
  bool was_welcome_ = false;
  bool has_been_welcome_ = false;  // on an earlier connection
  std::string last_failure_;
  bool said_silence_ = false;
  KeepAlive keep_alive_;
  Clock::time_point last_sign_;  // of the rendezvous' life
};

AgentLink::AgentLink(asio::io_context& io, Endpoint endpoint,
                     std::function<void(const AgentEvent&)> on_event,
                     std::function<void(const std::string&)> on_failed_attempt,
                     LinkSecurity security)
    : impl_(std::make_shared<Impl>(io, std::move(endpoint), std::move(on_event),
                                   std::move(on_failed_attempt), std::move(security))) {}

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
