// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/http_session.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <cstddef>
#include <iterator>
#include <utility>

#include "common/log.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/membership/standby_header.h"
#include "rendezvous/security/http_bounds.h"

namespace ddprun::rendezvous {

namespace http = boost::beast::http;
namespace websocket = boost::beast::websocket;

namespace {
using security::kMaxHeaderBytes, security::kMaxHeaderFields;
constexpr std::uint64_t kMaxBodyBytes = 1024;  // which nobody looks at
constexpr std::size_t kMaxRequestBytes = kMaxHeaderBytes + kMaxBodyBytes, kReadBytes = 2048;
constexpr char kAgentPath[] = "/v1/agent";
constexpr char kNoBrowser[] =
    "this rendezvous wants a token, which a browser can't prove that it has: \"ddprunctl top "
    "--token-file=PATH\" shows its jobs";

// What orchestrators ask, which have no token and no certificate.
bool is_probe(std::string_view path) { return path == kHealthPath || path == kReadyPath; }

// Another page that the user has open must not see what this one may. Who says no origin is no
// browser. A proxy in front may be the one that speaks TLS: either scheme will do.
template <typename Request>
bool is_same_origin(const Request& request) {
  const auto found = request.find(http::field::origin);
  if (found == request.end()) return true;
  const auto value = found->value(), host = request[http::field::host];
  const std::string_view origin(value.data(), value.size()), asked(host.data(), host.size());
  return !asked.empty() &&
         (origin == concat("http://", asked) || origin == concat("https://", asked));
}
}  // namespace

HttpSession::HttpSession(security::Wire wire, Options options)
    : options_(std::move(options)),
      wire_(std::move(wire)),
      timer_(wire_.get_executor()),
      most_to_read_(kMaxRequestBytes) {
  boost::system::error_code error;
  const auto peer = wire_.socket().remote_endpoint(error);
  peer_ = concat(peer.address().to_string(), ":", peer.port());
}

HttpSession::~HttpSession() = default;

void HttpSession::start() {
  arm_timer(options_.is_tls ? "the TLS handshake" : "a request");
  if (!options_.is_tls) return read();
  wire_.async_accept_tls(
      options_.tls, [self = shared_from_this()](boost::system::error_code error) {
        if (!error) {
          self->awaited_ = "a request";  // in the same time
          return self->read();
        }
        std::string trouble = self->wire_.tls_trouble(error);
        if (trouble.empty()) trouble = membership::describe_end(error);
        const bool is_cut = error == boost::asio::error::operation_aborted;
        if (!is_cut) {
          log_warning("closed the connection of ", self->peer_, ": no TLS (", trouble, ")");
        }
        self->finish();
      });
}

void HttpSession::stop() {
  options_.ended = nullptr;
  options_.upgraded = nullptr;
  finish();
}

// Closing the socket ends whatever is under way.
void HttpSession::arm_timer(const char* awaited) {
  awaited_ = awaited;
  timer_.expires_after(options_.timeout);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error) return;
    log_warning("closed the connection of ", self->peer_, ": waited ",
                self->options_.timeout.count(), " ms for ", self->awaited_);
    self->finish();
  });
}

void HttpSession::read() {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(kMaxHeaderBytes));
  parser_->body_limit(gangs::kMaxGangBytes);  // take_header() has the last word
  read_some();
}

// Not http::async_read: the parser's own limit is one of what it has not parsed yet, and it makes
// many bytes of memory of each in small fields.
void HttpSession::read_some() {
  const auto self = shared_from_this();
  wire_.async_read_some(buffer_.prepare(kReadBytes),
                        [self](boost::system::error_code error, std::size_t num_bytes) {
                          self->took(error, num_bytes);
                        });
}

void HttpSession::took(boost::system::error_code error, std::size_t num_bytes) {
  buffer_.commit(num_bytes);
  num_read_ += num_bytes;
  if (error == boost::asio::error::eof) {
    error = num_read_ == 0 ? http::error::end_of_stream : http::error::partial_message;
  }
  if (!error) {
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (!error && parser_->is_header_done() && !has_header_) take_header(error);
    if (error == http::error::need_more) error = {};
  }
  if (!error) {
    const bool is_too_long = num_read_ > most_to_read_;
    if (is_too_long || security::is_header_too_long(*parser_, num_read_)) {
      error = http::error::header_limit;
    }
  }
  if (!error) return parser_->is_done() ? answer() : read_some();
  if (error != http::error::end_of_stream && error != boost::asio::error::operation_aborted) {
    log_warning("closed the connection of ", peer_, ": not a valid HTTP request (", error.message(),
                ")");
  }
  finish();
}

// Who may send how much is known before any of it is read.
void HttpSession::take_header(boost::system::error_code& error) {
  has_header_ = true;
  std::uint64_t most = kMaxBodyBytes;
  if (is_for_queue() && parser_->get().method() != http::verb::get) {
    if (options_.door) admit({parser_->get().target().data(), parser_->get().target().size()});
    if (options_.door ? admission_.admitted : options_.takes_uploads) {
      most = gangs::kMaxGangBytes;
      most_to_read_ = kMaxHeaderBytes + 2 * gangs::kMaxGangBytes;  // chunks have frames
    }
  }
  const auto length = parser_->content_length();
  if (length && *length > most) {
    error = http::error::body_limit;
    return;
  }
  parser_->body_limit(most);
  parser_->eager(true);
  if (!parser_->is_done()) buffer_.consume(parser_->put(buffer_.data(), error));
}

// Its pages are the only ones with other methods than GET.
bool HttpSession::is_for_queue() const {
  const auto target = parser_->get().target();
  return options_.takes_gangs && gangs::is_gangs_target({target.data(), target.size()});
}

void HttpSession::answer() {
  const auto& request = parser_->get();
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = path_of(target);
  std::optional<Peer> peer;
  if (target == kAgentPath) peer = Peer::kAgent;
  if (target == gangs::kNodePath && options_.takes_gangs) peer = Peer::kNode;
  if (target == kWatchPath) peer = Peer::kWatcher;
  const bool is_own_page = is_probe(path) || path == kStatusPath || path == kMetricsPath;
  std::optional<std::string> leader;  // set: it is asked instead
  if (options_.stands_by && !is_own_page) leader = options_.stands_by();
  if (options_.tls && !options_.is_tls && !is_probe(path)) {
    log_warning("refused a request of ", peer_, ": it speaks no TLS (--tls-ca)");
    response_.set(security::kTlsHeader, "1");
    respond(http::status::upgrade_required, {"text/plain", "this rendezvous speaks TLS alone\n"});
  } else if (leader) {
    response_.set(membership::kStandbyHeader, *leader);
    respond(http::status::service_unavailable,
            {"text/plain", concat("this ddprund stands by",
                                  leader->empty() ? "" : concat("; ", *leader, " leads"), "\n")});
  } else if (peer == Peer::kWatcher) {
    answer_watcher();
  } else if (peer && websocket::is_upgrade(request)) {
    upgrade(*peer);
  } else if (peer) {
    respond(http::status::upgrade_required, {"text/plain", "this path is for ddprun agents\n"});
  } else if (request.method() != http::verb::get && !is_for_queue()) {
    respond(http::status::method_not_allowed, {"text/plain", "only GET is known here\n"});
  } else {
    answer_page(target);
  }
}

void HttpSession::admit(std::string_view target) {
  const auto& request = parser_->get();
  const auto given = request[http::field::authorization], method = request.method_string();
  const std::string binding = wire_.binding();
  admission_ =
      options_.door->check({given.data(), given.size()},
                           {{method.data(), method.size()}, target, binding}, Clock::now());
}

// Else it has answered.
bool HttpSession::is_admitted(std::string_view target) {
  if (!options_.door || is_probe(path_of(target))) return true;
  const auto& request = parser_->get();
  if (request.method() == http::verb::get) {
    admit(target);
  } else if (admission_.admitted && !options_.door->is_body(admission_, request.body())) {
    admission_ = {};
    admission_.reason = "its body is not the one that its proof is for";
  }
  if (admission_.admitted) return true;
  if (!admission_.reason.empty()) {
    log_warning("refused a request of ", peer_, ": ", admission_.reason);
  }
  response_.set(http::field::www_authenticate, options_.door->challenge(Clock::now()));
  std::string why = admission_.reason;
  if (why.empty())
    why = path_of(target) == kRootPath ? kNoBrowser : "this rendezvous wants a token";
  respond(http::status::unauthorized, {"text/plain", concat(why, "\n")});
  return false;
}

void HttpSession::answer_watcher() {
  const auto& request = parser_->get();
  if (!is_admitted(kWatchPath)) return;
  if (!websocket::is_upgrade(request)) {
    respond(http::status::upgrade_required, {"text/plain", "this path is for the page at /\n"});
  } else if (!is_same_origin(request)) {
    respond(
        http::status::forbidden,
        {"text/plain", "a page of another origin is told nothing: open this rendezvous' own\n"});
  } else {
    upgrade(Peer::kWatcher);
  }
}

void HttpSession::answer_page(std::string_view target) {
  if (!is_admitted(target)) return;
  const auto& request = parser_->get();
  const auto method = request.method_string(), accept = request[http::field::accept];
  const Request asked{{method.data(), method.size()},
                      target,
                      request.body(),
                      wire_.socket().native_handle(),
                      {accept.data(), accept.size()}};
  arm_timer("its answer");
  options_.page(asked, [self = shared_from_this()](std::optional<Page> page) {
    if (page) {
      const auto status = http::int_to_status(page->status);
      self->respond(status, std::move(*page));
    } else {
      self->respond(http::status::not_found,
                    {"text/plain", "try /, /healthz, /readyz, /metrics, /v1/jobs or /v1/status\n"});
    }
  });
}

void HttpSession::respond(http::status status, Page page) {
  arm_timer("the answer to be taken");
  response_.result(status);
  response_.version(11);
  response_.set(http::field::server, kServiceName);
  response_.set(http::field::content_type, page.content_type);
  response_.keep_alive(false);
  if (!page.policy.empty()) {
    response_.set("Content-Security-Policy", page.policy);
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Referrer-Policy", "no-referrer");
    response_.set(http::field::cache_control, "no-store");
  }
  if (admission_.admitted) {
    response_.set(security::kAnswerHeader,
                  options_.door->seal(admission_, response_.result_int(), page.body));
  }
  response_.body() = std::move(page.body);
  place_ = std::move(page.place);
  response_.prepare_payload();
  http::async_write(
      wire_, response_,
      [self = shared_from_this()](boost::system::error_code, std::size_t) { self->finish(); });
}

void HttpSession::upgrade(Peer peer) {
  if (buffer_.size() != 0) {
    respond(http::status::bad_request, {"text/plain", "frames before the upgrade was answered\n"});
    return;
  }
  arm_timer("the WebSocket handshake");
  frames_ = std::make_shared<membership::FrameStream>(std::move(wire_), options_.frames);
  std::function<void(membership::FrameStream::Response&)> add_header;
  if (options_.token && peer != Peer::kWatcher) {
    proof_ = std::make_unique<security::RendezvousProof>(options_.token, frames_->wire().binding());
    add_header = [text = proof_->challenge()](membership::FrameStream::Response& answer) {
      answer.set(security::kChallengeHeader, text);
    };
  } else if (admission_.admitted) {
    const unsigned status = static_cast<unsigned>(http::status::switching_protocols);
    add_header = [seal = options_.door->seal(admission_, status, "")](
                     membership::FrameStream::Response& answer) {
      answer.set(security::kAnswerHeader, seal);
    };
  }
  frames_->async_accept(
      parser_->get(), std::move(add_header),
      [self = shared_from_this(), frames = frames_, peer](boost::system::error_code error) {
        self->timer_.cancel();
        if (self->frames_ == nullptr) return;  // stopped or timed out
        if (error) {
          log_warning("closed the connection of ", self->peer_, ": ", error.message());
          self->finish();
          return;
        }
        self->frames_.reset();
        const auto upgraded = std::exchange(self->options_.upgraded, nullptr);
        const auto ended = std::exchange(self->options_.ended, nullptr);
        if (upgraded) upgraded(*self, peer, frames, std::move(self->proof_));
      });
}

void HttpSession::finish() {
  timer_.cancel();
  if (const auto frames = std::exchange(frames_, nullptr)) frames->close();
  wire_.close();
  if (const auto ended = std::exchange(options_.ended, nullptr)) ended(*this);
}

}  // namespace ddprun::rendezvous
