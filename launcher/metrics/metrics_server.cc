// SPDX-License-Identifier: Apache-2.0
#include "launcher/metrics/metrics_server.h"

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <utility>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/http/browser.h"
#include "rendezvous/http/exchange.h"

namespace ddprun::launcher {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};  // the pause after a failed accept
constexpr int kAcceptsPerEvent = 64;

// The family doesn't matter: the socket is only read, written and closed.
Tcp::socket socket_of(asio::io_context& io, UniqueFd connection) {
  Tcp::socket socket(io);
  boost::system::error_code error;
  socket.assign(Tcp::v4(), connection.get(), error);
  if (!error) connection.release();
  return socket;
}

constexpr std::chrono::seconds kNamePatience{5};

std::vector<UniqueFd> take_port(const Endpoint& endpoint) {
  if (endpoint.host.empty()) return rendezvous::bind_everywhere(endpoint.port);
  const NameLookup found = look_up(endpoint, Deadline::after(kNamePatience));
  if (found.addresses.empty()) throw Error(ErrorCode::kUnavailable, found.failure);
  return rendezvous::bind_addresses(endpoint, found.addresses);
}

}  // namespace

// Owned by its operations. Ends by itself within the timeout.
class MetricsServer::Session : public std::enable_shared_from_this<Session> {
 public:
  // `server` isn't used once its alive_ is gone.
  Session(MetricsServer& server, UniqueFd connection)
      : exchange_(socket_of(server.io_, std::move(connection))),
        timer_(server.io_),
        server_(server),
        alive_(server.alive_) {}

  void start(std::chrono::milliseconds timeout) {
    run_after(timer_, timeout, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self) self->close();
    });
    exchange_.async_read(nullptr,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           error ? self->close() : self->answer();
                         });
  }

  // Ends the request that is under way.
  void close() {
    exchange_.wire.close();
    timer_.cancel();
  }

 private:
  void answer();
  void respond(unsigned status, std::string_view type, std::string body);

  http::ServerExchange exchange_;
  asio::steady_timer timer_;
  MetricsServer& server_;
  const std::weak_ptr<bool> alive_;
};

void MetricsServer::Session::answer() {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  const http::Request& request = exchange_.request;
  const std::string_view target(request.target);
  const std::string_view path = target.substr(0, target.find('?'));
  if (request.method != "GET") {
    return respond(http::kMethodNotAllowed, kText, "only GET is known here\n");
  }
  if (path == "/healthz") return respond(http::kOk, kText, "ok\n");
  if (http::is_rebound(request, exchange_.wire.socket().native_handle())) {
    return respond(http::kForbidden, kText, concat(http::kForeignHost, "\n"));
  }
  if (path != "/metrics" || alive_.expired()) {
    return respond(http::kNotFound, kText, "try /metrics or /healthz\n");
  }
  const metrics::Format format = metrics::choose_format(request.fields["Accept"]);
  respond(http::kOk, metrics::content_type(format), server_.page(format));
}

void MetricsServer::Session::respond(unsigned status, std::string_view type, std::string body) {
  http::Response response{status, {}, std::move(body)};
  response.fields.add("Content-Type", type);
  if (status == http::kMethodNotAllowed) response.fields.add("Allow", "GET");
  exchange_.async_answer(
      std::move(response),
      [self = shared_from_this()](const boost::system::error_code&) { self->close(); });
}

MetricsServer::MetricsServer(asio::io_context& io, std::vector<UniqueFd> listeners, Page page,
                             Options options)
    : io_(io), page_(std::move(page)), options_(options), alive_(std::make_shared<bool>(true)) {
  for (UniqueFd& listener : listeners) {
    Listener& each =
        listeners_.emplace_back(Listener{Descriptor(io, listener.get()), asio::steady_timer(io)});
    listener.release();
    accept_from(each);
  }
}

MetricsServer::~MetricsServer() {
  for (const auto& each : sessions_) {
    if (const auto session = each.lock()) session->close();
  }
}

void MetricsServer::accept_from(Listener& listener) {
  when_readable(listener.socket, [this, &listener, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    if (accept_some(listener)) return accept_from(listener);
    run_after(listener.pause, kAcceptPause, [this, &listener, alive] {
      if (!alive.expired()) accept_from(listener);
    });
  });
}

// Accepts waiting connections, at most kAcceptsPerEvent, so that nothing else is delayed. False: no
// descriptor or memory is left.
bool MetricsServer::accept_some(Listener& listener) {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    UniqueFd connection(
        ::accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      take(std::move(connection));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (!is_of_one_connection(errno)) {
      return false;
    }
  }
  return true;
}

void MetricsServer::take(UniqueFd connection) {
  std::erase_if(sessions_, [](const auto& each) { return each.expired(); });
  if (sessions_.size() >= options_.max_connections) {
    if (const auto oldest = sessions_.front().lock()) oldest->close();
    sessions_.pop_front();
  }
  const auto session = std::make_shared<Session>(*this, std::move(connection));
  sessions_.push_back(session);
  session->start(options_.timeout);
}

const std::string& MetricsServer::page(metrics::Format format) {
  Made& made = made_.at(static_cast<std::size_t>(format));
  const Clock::time_point now = Clock::now();
  if (!made.at || now - *made.at > options_.max_age) made = {page_(format), now};
  return made.text;
}

std::vector<UniqueFd> bind_metrics(const Endpoint& endpoint) {
  try {
    return take_port(endpoint);
  } catch (const Error& error) {
    throw Error(error.code(), concat("--metrics=", to_string(endpoint), ": ", error.what()));
  }
}

std::string metrics_url(const std::vector<UniqueFd>& listeners) {
  return concat("http://", local_address(listeners.front().get()).text(), "/metrics");
}

// "HOST" alone is refused: it could mean any port, or a default one.
std::string parse_metrics(std::string_view text, std::optional<Endpoint>& to) {
  to.reset();
  if (text == "off") return {};
  const auto endpoint = parse_endpoint(text, 0), other = parse_endpoint(text, 1);
  if (std::string wrong = port_problem(text); !wrong.empty()) return wrong;
  if (!endpoint || endpoint->port != other->port) {
    return "wants HOST:PORT, :PORT (on all interfaces) or off";
  }
  to = endpoint;
  return {};
}

}  // namespace ddprun::launcher
