// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/link_connector.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <concepts>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "common/text.h"
#include "rendezvous/asio/connect.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/http/browser.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/security/proof.h"
#include "rendezvous/security/wire.h"
#include "rendezvous/wire/standby_header.h"

namespace ddprun::membership {

using std::chrono::milliseconds;
namespace asio = boost::asio;
using asio::ip::tcp;
using Kind = ConnectFailure::Kind;

EndpointTurns::EndpointTurns(std::vector<Endpoint> endpoints)
    : endpoints_(std::move(endpoints)), failures_(endpoints_.size()) {
  DDPRUN_CHECK(!endpoints_.empty());
}

void EndpointTurns::begin(std::size_t first) {
  DDPRUN_CHECK(first < endpoints_.size());
  current_ = first;
  num_failed_ = 0;
  num_turns_ = 0;
  std::ranges::fill(failures_, "");
}

milliseconds EndpointTurns::attempt_limit() const {
  if (is_alone()) return kLongestAttempt;
  constexpr int kMostDoublings = 8;
  return std::min(kFirstAttempt * (1 << std::min(num_turns_, kMostDoublings)), kLongestAttempt);
}

bool EndpointTurns::failed(const ConnectFailure& failure) {
  failures_[current_] = described(failure);
  current_ = (current_ + 1) % endpoints_.size();
  if (++num_failed_ < endpoints_.size()) return false;
  num_failed_ = 0;
  ++num_turns_;
  return true;
}

std::string EndpointTurns::described(const ConnectFailure& failure) const {
  switch (failure.kind) {
    case ConnectFailure::Kind::kAway:
      break;
    case ConnectFailure::Kind::kStandby:
      if (is_alone()) {
        return concat("it is a standby, and no leader was found",
                      failure.what.empty() ? "" : "; it takes " + failure.what + " for the leader");
      }
      return failure.what.empty() ? "it is a standby" : "it is a standby of " + failure.what;
    case ConnectFailure::Kind::kNoRendezvous:
      return concat("what listens there is not a ddprun rendezvous (", failure.what, ")");
    case ConnectFailure::Kind::kUntrusted:
      return concat(is_alone() ? "the rendezvous at " + to_string(endpoints_[current_]) : "it", " ",
                    failure.what);
  }
  return failure.what;
}

std::string EndpointTurns::names() const {
  std::string text;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    const bool is_last = i + 1 == endpoints_.size();
    text += (i == 0 ? "" : is_last ? " or " : ", ") + to_string(endpoints_[i]);
  }
  return text;
}

std::string EndpointTurns::failures() const {
  const auto is_tried = [](const std::string& failure) { return !failure.empty(); };
  if (std::ranges::none_of(failures_, is_tried)) {
    return "there was no time for an attempt";
  }
  if (is_alone()) return failures_.front();
  std::string text;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    text += concat(text.empty() ? "" : "; ", to_string(endpoints_[i]), ": ",
                   failures_[i].empty() ? "not tried" : failures_[i]);
  }
  return text;
}

class LinkConnector::Impl : public std::enable_shared_from_this<Impl> {
  // Wraps `handler`: it isn't called once the generation has changed. Keeps this object and the
  // attempt's stream alive.
  template <typename Handler>
  auto guard(Handler handler) {
    return [
      self = shared_from_this(), stream = opening_, generation = generation_,
      handler = std::move(handler)
    ]<typename... Args>(Args && ... args) mutable requires std::invocable<Handler&, Args...> {
      if (self->generation_ == generation) handler(std::forward<Args>(args)...);
    };
  }

 public:
  Impl(asio::io_context& io, Endpoint endpoint, LinkSecurity security, std::string path, Door door)
      : endpoint_(std::move(endpoint)),
        path_(std::move(path)),
        door_(door),
        security_(std::move(security)),
        io_(io),
        lookup_door_(std::make_shared<LookupDoor>()),
        timer_(io) {
    lookup_door_->io = &io;
  }

  const Endpoint& endpoint() const { return endpoint_; }

  void attempt(Clock::time_point until, Handlers handlers) {
    cancel();
    handlers_ = std::move(handlers);
    run_at(timer_, until, guard([this] {
             failed(awaits_name_
                        ? name_trouble("no answer from the name service")
                        : "no answer (the host is down, the address is wrong, or a firewall drops "
                          "packets)");
           }));
    boost::system::error_code not_numeric;
    const auto address =
        asio::ip::make_address(endpoint_.host.empty() ? "127.0.0.1" : endpoint_.host, not_numeric);
    if (!not_numeric) return open_any({tcp::endpoint(address, endpoint_.port)});
    awaits_name_ = true;
    look_name_up();
  }

  void cancel() {
    ++generation_;
    timer_.cancel();
    awaits_name_ = false;
    if (opening_) opening_->close();
    opening_.reset();
    request_proof_.reset();
    handlers_ = {};
  }

  void destroy() {
    cancel();
    const std::lock_guard<std::mutex> lock(lookup_door_->mutex);
    lookup_door_->io = nullptr;
  }

 private:
  // Takes the answer of a look-up's thread while the connector exists.
  struct LookupDoor {
    std::mutex mutex;
    asio::io_context* io = nullptr;  // guarded by mutex
  };

  std::string name_trouble(const std::string& what) const {
    return concat("the name ", endpoint_.host, " can't be resolved (", what, ")");
  }

  // Looks the name up, one at a time. A look-up may take longer than an attempt; its answer then
  // serves a later one.
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
    if (found.addresses.empty()) return failed(name_trouble(found.failure));
    std::vector<tcp::endpoint> targets = endpoints_of(found.addresses);
    // An address that drops packets must not block the others, so each attempt begins with another
    // one.
    const auto first = static_cast<std::ptrdiff_t>(num_failures_ % targets.size());
    std::rotate(targets.begin(), targets.begin() + first, targets.end());
    open_any(targets);
  }

  void open_any(std::vector<tcp::endpoint> targets) {
    targets_ = std::move(targets);
    const std::size_t most = door_ == Door::kRequest ? kMaxStateBytes : kMaxMessageBytes;
    opening_ =
        std::make_shared<FrameStream>(tcp::socket(io_), FrameStream::Limits{most, kMaxQueuedBytes});
    connect_to_first(opening_->wire().socket(), targets_,
                     guard([this](boost::system::error_code error) {
                       error ? connect_failed(error) : secure();
                     }));
  }

  void connect_failed(boost::system::error_code error) {
    if (error == asio::error::connection_refused) {
      ConnectFailure failure{Kind::kAway, "connection refused (nothing listens there)", true};
      failure.nothing_listens = true;
      end(failure);
    } else {
      failed(error.message());
    }
  }

  void secure() {
    boost::system::error_code ignored;
    opening_->wire().socket().set_option(tcp::no_delay(true), ignored);
    if (!security_.tls) return upgrade();
    std::string host =
        security_.certificate_host.empty() ? endpoint_.host : security_.certificate_host;
    if (host.empty()) host = "127.0.0.1";
    if (security_.leads_here && security_.leads_here(opening_->wire().socket().native_handle())) {
      // Else only other nodes would fail, later, with a message about themselves.
      const std::string trouble = security::own_certificate_trouble(security_.tls, host);
      return trouble.empty() ? upgrade() : untrusted("can't be trusted: " + trouble);
    }
    opening_->wire().async_connect_tls(
        security_.tls, host,
        guard([this](boost::system::error_code error) { error ? tls_failed(error) : upgrade(); }));
  }

  void tls_failed(boost::system::error_code error) {
    const std::string trouble = opening_->wire().tls_trouble(error);
    if (trouble.empty() || error == asio::ssl::error::stream_truncated) {
      return failed("it ended the connection in the TLS handshake");
    }
    ConnectFailure failure{Kind::kUntrusted, "can't be trusted: " + trouble};
    failure.no_tls = security::is_no_tls(error);
    end(failure);
  }

  void upgrade() {
    std::string authorization;
    if (request_proof_) {
      const std::string binding = opening_->wire().binding();
      try {
        authorization =
            request_proof_->answer(response_header("WWW-Authenticate"), {"GET", path_, binding});
      } catch (const Error& error) {
        return untrusted(error.what());
      }
    }
    response_ = {};
    const int socket = opening_->wire().socket().native_handle();
    opening_->async_handshake(response_, http::host_field(endpoint_, socket), path_, authorization,
                              guard([this](boost::system::error_code error) { upgraded(error); }));
  }

  std::string response_header(const char* name) const {
    return std::string(response_.fields[name]);
  }

  void upgraded(boost::system::error_code error) {
    if (!error) return door_ == Door::kRequest ? check_request_proof() : prove();
    if (door_ == Door::kRequest && is_declined(error) && response_.status == http::kUnauthorized) {
      return challenged();
    }
    if (const std::string trouble = opening_->wire().tls_trouble(error);
        !trouble.empty() && error != asio::ssl::error::stream_truncated) {
      return untrusted("ended TLS: " + trouble);
    }
    if (response_.fields.has(security::kTlsHeader)) {
      return untrusted(concat("wants TLS: give this ", security_.program, " --tls-ca"));
    }
    if (response_.fields.has(security::kOtherUserHeader)) {
      return untrusted(
          "serves programs of its own user and root alone: take another port, or give both sides "
          "--token-file or TLS");
    }
    if (is_dropped(error))
      return failed("it took the connection and dropped it", is_anyone_taken_for_it());
    // With TLS it has shown a certificate; with only a token it hasn't authenticated itself.
    if (is_standby()) return end({Kind::kStandby, leader(), security_.tls || !security_.token});
    end({Kind::kNoRendezvous,
         is_declined(error) ? concat("it answered HTTP ", response_.status) : error.message()});
  }

  bool is_standby() const {
    return response_.status == http::kServiceUnavailable && response_.fields.has(kStandbyHeader);
  }

  // Returns the leader that a standby named; empty: it knows none.
  std::string leader() const {
    const auto endpoint = parse_endpoint(response_header(kStandbyHeader), 0);
    return endpoint && !endpoint->host.empty() ? to_string(*endpoint) : "";
  }

  // Sends the request again, with the proof, on a new connection.
  void challenged() {
    if (!security_.token) return untrusted(wants_token());
    if (request_proof_) {
      return untrusted(
          "refused this request: its token is another one (compare the --token-file of both)");
    }
    request_proof_.emplace(security_.token);
    opening_->close();
    open_any(targets_);
  }

  // Later messages carry no proof, as an agent's messages don't: only TLS can protect them.
  void check_request_proof() {
    if (!security_.token) return opened();
    if (!request_proof_) return untrusted("has no token, but this side has one (--token-file)");
    try {
      request_proof_->check(response_header(security::kAnswerHeader), response_.status, "");
    } catch (const Error& error) {
      return untrusted(error.what());
    }
    opened();
  }

  std::string wants_token() const {
    return concat("wants a token: give this ", security_.program, " its --token-file");
  }

  // Before both sides have proved the same token, nothing about this node's job is sent, and no
  // message is obeyed.
  void prove() {
    const std::string_view challenge = response_.fields[security::kChallengeHeader];
    if (!security_.token && challenge.empty()) return check_user();
    if (!security_.token) return untrusted(wants_token());
    const auto proof =
        std::make_shared<security::AgentProof>(security_.token, opening_->wire().binding());
    std::string answer;
    try {
      answer = proof->answer(challenge);
    } catch (const Error& error) {
      return untrusted(error.what());
    }
    opening_->limit_messages(security::kMaxProofBytes);
    FrameStream::Handlers handlers;
    handlers.frame = guard([this, proof](std::string_view frame) {
      try {
        proof->check(frame);
      } catch (const Error& error) {
        return security_.token_is_of_one_run ? failed(concat("it ", error.what()))
                                             : untrusted(error.what());
      }
      opening_->limit_messages(kMaxMessageBytes);
      opened();
    });
    handlers.ended = guard([this](const std::string& reason) {
      failed("it ended the connection before it proved its token: " + reason);
    });
    opening_->start(std::move(handlers));
    opening_->send(std::move(answer));
  }

  // Without a token the kernel tells at least which user's process on this machine the other end
  // is. That process has accepted the connection, since it has answered.
  void check_user() {
    if (security_.tls) return opened();
    const int socket = opening_->wire().socket().native_handle();
    const std::string problem =
        security_.obeys_commands ? commander_problem(socket) : stranger_problem(socket);
    if (problem == kHiddenPeer) return failed(problem);  // the peer may just have ended
    problem.empty() ? opened() : untrusted(problem);
  }

  // ---- the end of an attempt ----

  void opened() {
    num_failures_ = 0;
    const auto stream = std::exchange(opening_, nullptr);
    const auto opened = std::move(handlers_.opened);
    cancel();
    opened(stream);
  }

  void failed(std::string what, bool sign_of_life = false) {
    end({Kind::kAway, std::move(what), sign_of_life});
  }

  void untrusted(std::string what) { end({Kind::kUntrusted, std::move(what)}); }

  void end(const ConnectFailure& failure) {
    ++num_failures_;
    const auto failed = std::move(handlers_.failed);
    cancel();
    failed(failure);
  }

  // Without token and TLS any answer shows that the rendezvous' host is there. Else a peer must
  // authenticate itself first.
  bool is_anyone_taken_for_it() const { return !security_.token && !security_.tls; }

  // Constant after construction.
  const Endpoint endpoint_;
  const std::string path_;
  const Door door_;
  const LinkSecurity security_;

  // I/O thread only.
  asio::io_context& io_;
  const std::shared_ptr<LookupDoor> lookup_door_;  // shared with a look-up's thread
  asio::steady_timer timer_;                       // ends the attempt
  std::uint64_t generation_ = 0;
  std::size_t num_failures_ = 0;          // failed attempts in a row
  Handlers handlers_;                     // of the attempt under way
  std::shared_ptr<FrameStream> opening_;  // shared with its handlers
  std::vector<tcp::endpoint> targets_;
  http::Response response_;
  std::optional<security::HttpProof> request_proof_;  // if set, the request has it
  bool awaits_name_ = false;                          // the attempt has no addresses yet
  bool looking_up_ = false;  // a look-up is under way, for this attempt or an earlier one
};

LinkConnector::LinkConnector(asio::io_context& io, Endpoint endpoint, LinkSecurity security,
                             std::string path, Door door)
    : impl_(std::make_shared<Impl>(io, std::move(endpoint), std::move(security), std::move(path),
                                   door)) {}

LinkConnector::~LinkConnector() { impl_->destroy(); }
const Endpoint& LinkConnector::endpoint() const { return impl_->endpoint(); }
void LinkConnector::attempt(Clock::time_point until, Handlers handlers) {
  impl_->attempt(until, std::move(handlers));
}
void LinkConnector::cancel() { impl_->cancel(); }

}  // namespace ddprun::membership
