// SPDX-License-Identifier: Apache-2.0
// `ddprunctl open` serves the status page of a rendezvous to a browser, which can't send a token.
// It serves on loopback. The printed address works once; then a cookie identifies the browser. The
// rendezvous is asked with this side's proof (docs/security.md).
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/peer_user.h"
#include "common/random_id.h"
#include "common/text.h"
#include "ctl/commands.h"
#include "ctl/endpoint_flags.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/http/browser.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/wire/frame_stream.h"
#include "rendezvous/wire/link_connector.h"

namespace ddprun::ctl {
namespace {

using boost::asio::ip::tcp;
using membership::ConnectFailure, membership::FrameStream, membership::LinkConnector;

constexpr char kWatchPath[] = "/v1/watch";
constexpr std::chrono::seconds kRequestLimit{10};
constexpr std::size_t kMostVisits = 64;

// Decides which requests are let in. All connections share it.
class Door {
 public:
  Door(const EndpointFlags& endpoint, std::string host)
      : endpoint_(endpoint), security_(endpoint.security()), host_(std::move(host)) {}

  std::string address() const { return concat("http://", host_, "/?once=", once_); }
  std::string cookie() const { return concat("ddprun=", cookie_); }
  const EndpointFlags& endpoint() const { return endpoint_; }
  const membership::LinkSecurity& security() const { return security_; }

  // Whether it names this server: other sites' pages could send requests under another name.
  bool is_named_so(const http::Request& request) const { return request.fields["Host"] == host_; }
  // Whether the request has the printed address, for the first time.
  bool opens(const http::Request& request) {
    if (once_.empty() || request.target != "/?once=" + once_) return false;
    once_.clear();
    return true;
  }
  bool knows(const http::Request& request) const {
    return once_.empty() && request.fields["Cookie"].find(cookie()) != std::string_view::npos;
  }

 private:
  const EndpointFlags& endpoint_;
  const membership::LinkSecurity security_;
  const std::string host_;
  std::string once_ = random_id();
  const std::string cookie_ = random_id();
};

// One connection of a browser.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  using Ended = std::function<void(const std::shared_ptr<Visit>&)>;

  Visit(boost::asio::io_context& io, tcp::socket socket, Door& door, Ended ended)
      : io_(io),
        door_(door),
        exchange_(security::Wire(std::move(socket))),
        timer_(io),
        ended_(std::move(ended)) {}

  void start() {
    run_after(timer_, kRequestLimit, [self = shared_from_this()] { self->exchange_.wire.close(); });
    exchange_.async_read(
        [](const http::Request&) {
          return http::ServerExchange::Limit{0, http::kMaxHeaderBytes};
        },
        [self = shared_from_this()](boost::system::error_code error) {
          self->timer_.cancel();
          error ? self->end() : self->answer();
        });
  }

  // Whether it has shown the printed address, or the cookie.
  bool is_let_in() const { return is_let_in_; }

  // Closes the connection. The object is destroyed when its operations have ended.
  void end() {
    timer_.cancel();
    exchange_.wire.close();
    for (auto* frames : {&browser_, &rendezvous_}) {
      if (*frames) (*frames)->close();
    }
    if (const Ended ended = std::exchange(ended_, nullptr)) ended(shared_from_this());
  }

 private:
  void answer() {
    const http::Request& request = exchange_.request;
    http::Fields fields;
    if (!door_.is_named_so(request) || request.method != "GET" || is_of_another_user()) {
      return respond(http::kForbidden, std::move(fields), "this is for one browser\n");
    }
    is_let_in_ = door_.opens(request);
    if (is_let_in_) {
      // Not a redirection: that would count as coming from another site, and would not get this
      // cookie.
      fields.add("Set-Cookie", concat(door_.cookie(), "; HttpOnly; SameSite=Strict; Path=/"));
      fields.add("Content-Type", "text/html; charset=utf-8");
      return respond(http::kOk, std::move(fields),
                     "<!doctype html><meta http-equiv=refresh content='0;url=/'>");
    }
    if (!door_.knows(request)) {
      return respond(http::kForbidden, std::move(fields),
                     "the address that ddprunctl open prints is good once, for one browser; "
                     "start it again for another one\n");
    }
    is_let_in_ = true;
    if (request.target == kWatchPath && request.is_upgrade && http::is_same_origin(request)) {
      return watch();
    }
    if (request.target != "/") return respond(http::kNotFound, std::move(fields), "try /\n");
    try {  // blocks: no other request is served meanwhile
      const pages::Page page = door_.endpoint().fetch_document();
      fields.add("Content-Type", "text/html; charset=utf-8");
      http::add_page_fields(page.policy, &fields);
      respond(http::kOk, std::move(fields), page.body);
    } catch (const Error& error) {
      respond(http::kServiceUnavailable, std::move(fields), concat(error.what(), "\n"));
    }
  }

  // Checks the user, since the cookie isn't enough: a browser sends it to all ports of this
  // address.
  bool is_of_another_user() {
    return !loopback_client_problem(exchange_.wire.socket().native_handle(), ::geteuid()).empty();
  }

  void respond(unsigned status, http::Fields fields, std::string body) {
    if (!fields.has("Content-Type")) fields.add("Content-Type", "text/plain; charset=utf-8");
    exchange_.async_answer({status, std::move(fields), std::move(body)},
                           [self = shared_from_this()](boost::system::error_code) { self->end(); });
  }

  // Follows the endpoint that leads.
  void watch() {
    turns_.begin(0);
    attempt();
  }

  void attempt() {
    connector_ = std::make_unique<LinkConnector>(
        io_, door_.endpoint().endpoints()[turns_.current()], door_.security(), kWatchPath,
        LinkConnector::Door::kRequest);
    connector_->attempt(
        Clock::now() + turns_.attempt_limit(),
        {.opened = [self = shared_from_this()](const auto& frames) { self->opened(frames); },
         .failed =
             [self = shared_from_this()](const ConnectFailure& failure) {
               if (!self->turns_.failed(failure)) return self->attempt();
               self->respond(http::kServiceUnavailable, {}, concat(self->turns_.failures(), "\n"));
             }});
  }

  void opened(const std::shared_ptr<FrameStream>& rendezvous) {
    rendezvous_ = rendezvous;
    browser_ = std::make_shared<FrameStream>(
        std::move(exchange_.wire),
        FrameStream::Limits{.max_queued_bytes = LinkConnector::kMaxStateBytes});
    browser_->async_accept(exchange_.request, {},
                           [self = shared_from_this()](boost::system::error_code error) {
                             error ? self->end() : self->pass_on();
                           });
  }

  void pass_on() {
    const auto relay = [self = shared_from_this()](FrameStream& to) {
      FrameStream::Handlers handlers;
      handlers.frame = [&to](std::string_view text) { to.send(std::string(text)); };
      handlers.ended = [self](const std::string&) { self->end(); };
      return handlers;
    };
    browser_->start(relay(*rendezvous_));
    rendezvous_->start(relay(*browser_));
  }

  boost::asio::io_context& io_;
  Door& door_;
  http::ServerExchange exchange_;
  boost::asio::steady_timer timer_;
  Ended ended_;
  bool is_let_in_ = false;
  membership::EndpointTurns turns_{door_.endpoint().endpoints()};
  std::unique_ptr<LinkConnector> connector_;
  std::shared_ptr<FrameStream> browser_, rendezvous_;  // also owned by their operations
};

// Keeps strangers from blocking others by open connections: ends the oldest visit that was not let
// in.
void make_room(const std::vector<std::shared_ptr<Visit>>& visits) {
  if (visits.size() < kMostVisits) return;
  const auto stranger = std::ranges::find_if_not(visits, &Visit::is_let_in);
  if (stranger != visits.end()) std::shared_ptr(*stranger)->end();
}

class OpenCommand : public Command {
 public:
  explicit OpenCommand(CLI::App& app) : Command(app, "open"), endpoint_(*command_) {}

  // Returns 128 and the signal that ends it. Throws as EndpointFlags::fetch_page().
  int run() const override {
    endpoint_.fetch_page("/v1/status");  // so an error is printed before a browser shows it
    boost::asio::io_context io(1);
    boost::asio::signal_set signals(io, SIGINT, SIGTERM, SIGHUP);
    int signal = 0;
    signals.async_wait([&](boost::system::error_code error, int number) {
      if (error) return;
      signal = number;
      io.stop();
    });
    // Takes an address that no other server uses, since a browser sends cookies to all ports of it.
    const RandomBytes random = random_bytes();
    const boost::asio::ip::address_v4 own(
        {127, random[0], random[1], static_cast<unsigned char>(1 + random[2] % 254)});
    tcp::acceptor acceptor(io, tcp::endpoint(own, 0));
    boost::asio::steady_timer again(io);
    Door door(endpoint_, concat(own.to_string(), ":", acceptor.local_endpoint().port()));
    std::vector<std::shared_ptr<Visit>> visits;  // the oldest one first
    std::function<void()> accept = [&] {
      acceptor.async_accept([&](boost::system::error_code error, tcp::socket socket) {
        if (error == boost::asio::error::operation_aborted) return;
        if (!error) make_room(visits);
        if (!error && visits.size() < kMostVisits) {
          const auto visit = std::make_shared<Visit>(
              io, std::move(socket), door,
              [&visits](const std::shared_ptr<Visit>& each) { std::erase(visits, each); });
          visits.push_back(visit);
          visit->start();
        }
        // With an error there is no free descriptor: waits a moment.
        run_after(again, std::chrono::milliseconds(error ? 100 : 0), [&] { accept(); });
      });
    };
    accept();
    if (const int code = print_or_tell(
            concat("open ", door.address(), "\nin a browser on this machine; Ctrl-C ends it\n"));
        code != 0) {
      return code;
    }
    io.run();
    for (const auto& visit : std::vector(visits)) visit->end();
    return exit_status_for_signal(signal);
  }

 private:
  EndpointFlags endpoint_;
};

}  // namespace

std::unique_ptr<Command> make_open_command(CLI::App& app) {
  return std::make_unique<OpenCommand>(app);
}

}  // namespace ddprun::ctl
