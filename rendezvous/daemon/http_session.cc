// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/http_session.h"

#include <utility>

#include "common/log.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/http/browser.h"
#include "rendezvous/messages/stacks_target.h"
#include "rendezvous/wire/standby_header.h"

namespace ddprun::rendezvous {

namespace {
constexpr std::uint64_t kMaxBodyBytes = 1024;  // of a body that isn't used
constexpr char kAgentPath[] = "/v1/agent";
constexpr char kNoBrowser[] =
    "this rendezvous wants a token, which a browser can't prove that it has: \"ddprunctl open "
    "--token-file=PATH\" shows it this page, \"ddprunctl top\" a terminal its jobs";

// Orchestrators ask for probes without a token or certificate.
bool is_probe(std::string_view path) { return path == kHealthPath || path == kReadyPath; }
}  // namespace

HttpSession::HttpSession(security::Wire wire, Options options)
    : options_(std::move(options)),
      exchange_(std::move(wire)),
      timer_(exchange_.wire.get_executor()) {
  peer_ = peer_text(exchange_.wire.socket().native_handle());
}

void HttpSession::start() {
  arm_timer(options_.is_tls ? "the TLS handshake" : "a request");
  if (!options_.is_tls) return read();
  exchange_.wire.async_accept_tls(
      options_.tls, [self = shared_from_this()](boost::system::error_code error) {
        if (!error) {
          self->awaited_ = "a request";  // within the same timeout
          return self->read();
        }
        std::string trouble = self->exchange_.wire.tls_trouble(error);
        if (trouble.empty()) trouble = membership::describe_end(error);
        const bool is_cut = error == boost::asio::error::operation_aborted;
        if (!is_cut) {
          log_about_peer(LogLevel::kWarning, "closed the connection of ", self->peer_, ": no TLS (",
                         trouble, ")");
        }
        self->finish();
      });
}

void HttpSession::stop() {
  options_.ended = nullptr;
  options_.upgraded = nullptr;
  finish();
}

// At the timeout it closes the socket, which ends all operations.
void HttpSession::arm_timer(const char* awaited) {
  awaited_ = awaited;
  run_after(timer_, options_.timeout, [self = shared_from_this()] {
    log_about_peer(LogLevel::kWarning, "closed the connection of ", self->peer_, ": waited ",
                   self->options_.timeout.count(), " ms for ", self->awaited_);
    self->finish();
  });
}

void HttpSession::read() {
  exchange_.async_read([this](const http::Request&) { return body_limit(); },
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         error ? self->broke(error) : self->answer();
                       });
}

void HttpSession::broke(const boost::system::error_code& error) {
  if (error != boost::asio::error::eof && error != boost::asio::error::operation_aborted) {
    log_about_peer(LogLevel::kWarning, "closed the connection of ", peer_,
                   ": not a valid HTTP request (", error.message(), ")");
  }
  finish();
}

// Decides how large a body this client may send, before any of it is read.
http::ServerExchange::Limit HttpSession::body_limit() {
  const http::Request& request = exchange_.request;
  if (is_for_queue() && request.method != "GET") {
    if (options_.door) admit(request.target);
    if (options_.door ? admission_.admitted : options_.takes_uploads) {
      return {gangs::kMaxGangBytes, http::kMaxHeaderBytes + 2 * gangs::kMaxGangBytes};
    }
  }
  return {kMaxBodyBytes, http::kMaxHeaderBytes + kMaxBodyBytes};
}

// Only the queue's pages have other methods than GET.
bool HttpSession::is_for_queue() const {
  return options_.takes_gangs && gangs::is_gangs_target(exchange_.request.target);
}

void HttpSession::answer() {
  const http::Request& request = exchange_.request;
  const std::string_view target(request.target);
  const std::string_view path = path_of(target);
  std::optional<Peer> peer;
  if (target == kAgentPath) peer = Peer::kAgent;
  if (target == gangs::kNodePath && options_.takes_gangs) peer = Peer::kNode;
  if (target == kWatchPath) peer = Peer::kWatcher;
  const bool is_own_page = is_probe(path) || path == kStatusPath || path == kMetricsPath;
  std::optional<std::string> leader;  // set: a standby, which refers to the leader
  if (options_.stands_by && !is_own_page) leader = options_.stands_by();
  if (options_.tls && !options_.is_tls && !is_probe(path)) {
    log_about_peer(LogLevel::kWarning, "refused a request of ", peer_,
                   ": it speaks no TLS (--tls-ca)");
    fields_.add(security::kTlsHeader, "1");
    tell(http::kUpgradeRequired, "this rendezvous speaks TLS alone");
  } else if (leader) {
    fields_.add(membership::kStandbyHeader, *leader);
    tell(http::kServiceUnavailable,
         concat("this ddprund stands by", leader->empty() ? "" : concat("; ", *leader, " leads")));
  } else if (const std::string stranger = refusal_of_user(path); !stranger.empty()) {
    log_about_peer(LogLevel::kWarning, "refused a request of ", peer_, ": ", stranger);
    fields_.add(security::kOtherUserHeader, "1");
    tell(http::kForbidden, stranger);
  } else if (const char* why = refusal_of_browser(peer)) {
    log_about_peer(LogLevel::kWarning, "refused a request of ", peer_, ": ", why);
    tell(http::kForbidden, why);
  } else if (peer == Peer::kWatcher) {
    answer_watcher();
  } else if (peer && request.is_upgrade) {
    upgrade(*peer);
  } else if (peer) {
    tell(http::kUpgradeRequired, "this path is for ddprun agents");
  } else if (request.method != "GET" && !is_for_queue()) {
    tell(http::kMethodNotAllowed, "only GET is known here");
  } else {
    answer_page(target);
  }
}

// Returns why a page in a browser may not send this request; nullptr: it may. A page of another
// origin can send requests, but can't read the answers. A page whose name was made to resolve here
// (DNS rebinding) can read them, too.
const char* HttpSession::refusal_of_browser(std::optional<Peer> peer) {
  const http::Request& request = exchange_.request;
  if (is_probe(path_of(request.target))) return nullptr;
  const bool is_for_programs = request.method != "GET" || (peer && peer != Peer::kWatcher) ||
                               path_of(request.target) == membership::kStacksPath;
  if (is_for_programs) {
    if (http::is_of_browser(request)) return "this is for programs, not for a page in a browser";
    if (http::is_of_form(request)) return "send it as application/json: a form may be a browser's";
  }
  if (options_.door) return nullptr;  // a browser can't prove a token
  const int socket = exchange_.wire.socket().native_handle();
  return http::is_rebound(request, socket) ? http::kForeignHost : nullptr;
}

// Returns why this user is refused; empty: it isn't.
std::string HttpSession::refusal_of_user(std::string_view path) {
  if (!options_.only_user || is_probe(path)) return {};
  return loopback_client_problem(exchange_.wire.socket().native_handle(), *options_.only_user);
}

void HttpSession::admit(std::string_view target) {
  const http::Request& request = exchange_.request;
  const std::string binding = exchange_.wire.binding();
  admission_ = options_.door->check(request.fields["Authorization"],
                                    {request.method, target, binding}, Clock::now());
}

// Returns whether a bearer token, as Prometheus sends it, allows this request. Such a token could
// be read on the way, so it is taken only over TLS or loopback.
bool HttpSession::may_read(std::string_view target) {
  const http::Request& request = exchange_.request;
  const std::string_view authorization = request.fields["Authorization"];
  const std::string_view path = path_of(target);
  const bool is_readable = path == kMetricsPath || path == kStatusPath || path == kJobsPath;
  if (!options_.scrape_token || request.method != "GET" || !is_readable ||
      !security::is_bearer(authorization, *options_.scrape_token)) {
    return false;
  }
  if (options_.is_tls || http::is_over_loopback(exchange_.wire.socket().native_handle())) {
    return true;
  }
  admission_.reason = "a bearer token without TLS is taken on loopback alone";
  return false;
}

// Returns whether the request is admitted. If not, it has been answered.
bool HttpSession::is_admitted(std::string_view target) {
  if (!options_.door || is_probe(path_of(target)) || may_read(target)) return true;
  const http::Request& request = exchange_.request;
  if (request.method == "GET") {
    if (admission_.reason.empty()) admit(target);
  } else if (admission_.admitted && !options_.door->is_body(admission_, request.body)) {
    admission_ = {};
    admission_.reason = "its body is not the one that its proof is for";
  }
  if (admission_.admitted) return true;
  if (!admission_.reason.empty()) {
    log_about_peer(LogLevel::kWarning, "refused a request of ", peer_, ": ", admission_.reason);
  }
  fields_.add("WWW-Authenticate", options_.door->challenge(Clock::now()));
  std::string why = admission_.reason;
  if (why.empty())
    why = path_of(target) == kRootPath ? kNoBrowser : "this rendezvous wants a token";
  tell(http::kUnauthorized, why);
  return false;
}

void HttpSession::answer_watcher() {
  const http::Request& request = exchange_.request;
  if (!is_admitted(kWatchPath)) return;
  if (!request.is_upgrade) {
    tell(http::kUpgradeRequired, "this path is for the page at /");
  } else if (!http::is_same_origin(request)) {
    tell(http::kForbidden, "a page of another origin is told nothing: open this rendezvous' own");
  } else {
    upgrade(Peer::kWatcher);
  }
}

void HttpSession::answer_page(std::string_view target) {
  if (!is_admitted(target)) return;
  const http::Request& request = exchange_.request;
  const Request asked{request.method, target, request.body, exchange_.wire.socket().native_handle(),
                      request.fields["Accept"]};
  arm_timer("its answer");
  options_.page(asked, [self = shared_from_this()](std::optional<Page> page) {
    if (page) return self->respond(std::move(*page));
    self->tell(http::kNotFound, "try /, /healthz, /readyz, /metrics, /v1/jobs or /v1/status");
  });
}

void HttpSession::respond(Page page) {
  arm_timer("the answer to be taken");
  fields_.add("Server", kServiceName);
  fields_.add("Content-Type", page.content_type);
  if (!page.policy.empty()) http::add_page_fields(page.policy, &fields_);
  if (admission_.admitted) {
    fields_.add(security::kAnswerHeader, options_.door->seal(admission_, page.status, page.body));
  }
  place_ = std::move(page.place);
  exchange_.async_answer(
      {page.status, std::move(fields_), std::move(page.body)},
      [self = shared_from_this()](const boost::system::error_code&) { self->finish(); });
}

void HttpSession::upgrade(Peer peer) {
  if (exchange_.has_more()) {
    tell(http::kBadRequest, "frames before the upgrade was answered");
    return;
  }
  arm_timer("the WebSocket handshake");
  frames_ = std::make_shared<membership::FrameStream>(std::move(exchange_.wire), options_.frames);
  http::Fields fields;
  if (options_.token && peer != Peer::kWatcher) {
    proof_ = std::make_unique<security::RendezvousProof>(options_.token, frames_->wire().binding());
    fields.add(security::kChallengeHeader, proof_->challenge());
  } else if (admission_.admitted) {
    fields.add(security::kAnswerHeader,
               options_.door->seal(admission_, http::kSwitchingProtocols, ""));
  }
  frames_->async_accept(
      exchange_.request, fields,
      [self = shared_from_this(), frames = frames_, peer](boost::system::error_code error) {
        self->timer_.cancel();
        if (self->frames_ == nullptr) return;  // stopped or timed out
        if (error) {
          log_about_peer(LogLevel::kWarning, "closed the connection of ", self->peer_, ": ",
                         error.message());
          self->finish();
          return;
        }
        self->frames_.reset();
        const auto upgraded = std::exchange(self->options_.upgraded, nullptr);
        const auto ended = std::exchange(self->options_.ended, nullptr);
        if (upgraded) upgraded(peer, frames, std::move(self->proof_));
      });
}

void HttpSession::finish() {
  timer_.cancel();
  if (const auto frames = std::exchange(frames_, nullptr)) frames->close();
  exchange_.wire.close();
  if (const auto ended = std::exchange(options_.ended, nullptr)) ended();
}

}  // namespace ddprun::rendezvous
