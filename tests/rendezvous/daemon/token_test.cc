// SPDX-License-Identifier: Apache-2.0
// Agents and strangers at a daemon that has a token.
#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <functional>

#include "common/log.h"
#include "rendezvous/daemon/http_session.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/security/proof.h"
#include "rendezvous/wire/link_connector.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"
#include "tests/support/secret_file.h"

namespace ddprun::rendezvous::testing {
namespace {

using ddprun::test::Contains;
using ddprun::test::secret_of;

constexpr char kToken[] = "correct horse battery staple";

DaemonOptions with_token(const std::string& token = kToken) {
  DaemonOptions options;
  options.token = secret_of(token);
  return options;
}

membership::AgentOptions agent_at(std::uint16_t port, int num_nodes = 1) {
  return TestAgent::options(port, make_join("a", num_nodes));
}

// The verdict with which an agent with `token` ends.
membership::JobEnd verdict_at(std::uint16_t port, std::shared_ptr<const Secret> token) {
  boost::asio::io_context io{1};
  membership::AgentOptions options = agent_at(port);
  options.connect_timeout = 1h;  // this limit is not what ends it
  TestAgent agent(io, options, {std::move(token), nullptr});
  REQUIRE(run_until(io, [&] { return agent.exit.has_value(); }));
  CHECK(agent.rounds.empty());
  return agent.exit->verdict;
}

std::string all_lines() {
  std::string text;
  for (const std::string& line : lines()) text += line + "\n";
  return text;
}

TEST_CASE("Token: an agent that has it joins, and a job runs to its end") {
  boost::asio::io_context io{1};
  set_log_level(LogLevel::kError);
  const auto token = secret_of(kToken);
  DaemonOptions options;
  options.token = token;
  Daemon daemon(io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  TestAgent a(io, agent_at(daemon.port()), {token, nullptr});
  REQUIRE(run_until(io, [&] { return !a.rounds.empty(); }));
  a.cut_link();
  REQUIRE(run_until(io, [&] { return a.told.back() == "the rendezvous is back"; }));
  a.workers_succeed();
  REQUIRE(run_until(io, [&] { return a.exit.has_value(); }));
  CHECK(a.exit->verdict.exit_code == 0);
}

TEST_CASE("Token: another one or none is one line on both sides, and exit code 2") {
  ServedDaemon daemon(with_token());
  const std::string where = "the rendezvous at 127.0.0.1:" + std::to_string(daemon.port);
  const auto wrong = verdict_at(daemon.port, secret_of("another token of ours"));
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.reason ==
        where + " refused this node: its token is another one (compare the --token-file of both)");
  const auto none = verdict_at(daemon.port, nullptr);
  CHECK(none.exit_code == 2);
  CHECK(none.reason == where + " wants a token: give this ddprun its --token-file");
  CHECK_THAT(daemon.exchange("GET /healthz HTTP/1.0\r\n\r\n"),
             Contains("200 OK"));  // both connections are closed by now
  daemon.stop();
  REQUIRE(lines().size() == 2);
  CHECK_THAT(lines()[0],
             Contains("closed the connection of agent 127.0.0.1:") &&
                 Contains("its token is another one (compare the --token-file of both)"));
  CHECK_THAT(lines()[1], Contains("it gave no proof of the token (the peer closed"));
}

TEST_CASE("Token: one run's token waits while an earlier run's rendezvous has the port") {
  boost::asio::io_context io{1};
  set_log_level(LogLevel::kInfo);
  const test::LogLines log;
  auto daemon =
      std::make_unique<Daemon>(io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}),
                               with_token("the earlier run's token"));
  const Endpoint endpoint{.host = "127.0.0.1", .port = daemon->port()};
  membership::LinkSecurity security{secret_of(kToken), nullptr};
  security.token_is_of_one_run = true;
  membership::AgentOptions options = agent_at(endpoint.port);
  options.connect_timeout = 1h;  // this limit is not what ends it
  TestAgent agent(io, options, security);
  REQUIRE(run_until(io, [&] {
    return std::ranges::any_of(log.all(), [](const std::string& line) {
      return line.find("its token is another one") != std::string::npos;
    });
  }));
  daemon.reset();
  daemon = std::make_unique<Daemon>(io, bind_endpoint(endpoint), with_token());
  CHECK(run_until(io, [&] { return !agent.rounds.empty(); }));
}

TEST_CASE("Token: an agent that has one refuses a rendezvous that has none") {
  ServedDaemon daemon;
  const auto verdict = verdict_at(daemon.port, secret_of(kToken));
  CHECK(verdict.exit_code == 2);
  CHECK_THAT(verdict.reason, Contains("has no token, but this side has one (--token-file)"));
  daemon.stop();
  CHECK_THAT(all_lines(), !Contains("joined"));
}

TEST_CASE("Token: nothing that is said before the proof is heard") {
  ServedDaemon daemon(with_token());
  const std::string join = membership::encode(membership::AgentEnvelope{0, 0, make_join("x", 1)});
  CHECK_THAT(daemon.exchange_frames(text_frame(join)),
             Contains("refused ") && !Contains("welcome"));
  const std::string text(2000, 'x');  // longer than a proof may be
  CHECK_THAT(daemon.exchange_frames(text_frame(text)), !Contains("still open"));
  CHECK_THAT(daemon.exchange("GET /healthz HTTP/1.0\r\n\r\n"),
             Contains("200 OK"));  // it has logged the line by now
  daemon.stop();
  CHECK_THAT(all_lines(), !Contains("joined") && Contains("no proof of the token (--token-file)") &&
                              Contains("a message is larger than allowed"));
}

TEST_CASE("Token: a silent agent is closed at the deadline") {
  DaemonOptions options = with_token();
  options.handshake_timeout = 2500ms;
  ServedDaemon daemon(options);
  ServedDaemon::read_all(daemon.upgrade());
  daemon.stop();
  CHECK_THAT(all_lines(), Contains("no proof of the token in 2500 ms"));
}

TEST_CASE("Token: the oldest of too many that have not proved it goes") {
  DaemonOptions options = with_token();
  options.max_handshakes = 2;
  ServedDaemon daemon(options);
  const UniqueFd first = daemon.upgrade(), second = daemon.upgrade(), third = daemon.upgrade();
  CHECK_THAT(ServedDaemon::read_all(first), !Contains("still open"));
  daemon.stop();
  CHECK_THAT(all_lines(), Contains("no proof of the token yet, and 2 came after it"));
}

// The first frame that a watcher with `token` hears, or the reason why it hears nothing.
std::string watched(std::uint16_t port, std::shared_ptr<const Secret> token) {
  boost::asio::io_context io{1};
  membership::LinkConnector connector(
      io, {"127.0.0.1", port}, {.token = std::move(token), .tls = {}, .program = "ddprunctl"},
      kWatchPath, membership::LinkConnector::Door::kRequest);
  std::string heard;
  std::shared_ptr<membership::FrameStream> stream;  // second owner: its operations
  membership::LinkConnector::Handlers handlers;
  handlers.opened = [&](std::shared_ptr<membership::FrameStream> frames) {
    stream = std::move(frames);
    membership::FrameStream::Handlers said;
    said.frame = [&](std::string_view frame) { heard = frame; };
    said.ended = [&](const std::string& reason) { heard = reason; };
    stream->start(std::move(said));
  };
  handlers.failed = [&](const membership::ConnectFailure& failure) { heard = failure.what; };
  connector.attempt(Clock::now() + 10s, std::move(handlers));
  CHECK(run_until(io, [&] { return !heard.empty(); }));
  if (stream) stream->close();
  return heard;
}

TEST_CASE("Token: a watcher proves it as one who asks for a page, and so does the rendezvous") {
  ServedDaemon closed(with_token()), open{DaemonOptions{}};
  CHECK_THAT(watched(closed.port, secret_of(kToken)), Contains("{\"type\":\"state\""));
  CHECK(watched(closed.port, secret_of("another token of ours")) ==
        "refused this request: its token is another one (compare the --token-file of both)");
  CHECK(watched(closed.port, nullptr) == "wants a token: give this ddprunctl its --token-file");
  CHECK(watched(open.port, secret_of(kToken)) ==
        "has no token, but this side has one (--token-file)");
  CHECK_THAT(watched(open.port, nullptr), Contains("{\"type\":\"state\""));
}

TEST_CASE("Token: the port has no store and no page of jobs for strangers") {
  ServedDaemon daemon(with_token());
  const std::string hello(
      "\0\xce\xf7\x85\x3c\x0d"
      "1234",
      10);  // VALIDATE, PING
  CHECK(daemon.exchange(hello) == "");
  CHECK_THAT(daemon.exchange("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("401 Unauthorized") && Contains("WWW-Authenticate: DDPRUN-HMAC 1 ") &&
                 !Contains("\"jobs\""));
  CHECK_THAT(daemon.exchange(
                 "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic eDp5\r\n\r\n"),
             Contains("401 Unauthorized") && !Contains("\"jobs\""));
  CHECK_THAT(daemon.exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("200 OK"));
  CHECK_THAT(daemon.exchange("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("200 OK"));
  daemon.stop();
  CHECK_THAT(all_lines(),
             Contains("a c10d store client, and where there is a token or TLS this port has no "
                      "store"));
}

// Asks as ddprunctl does, but asks for `target` with the proof for /v1/jobs.
std::string ask_with_proof(ServedDaemon& daemon, const std::string& target, std::string* used) {
  const std::string refusal = daemon.exchange("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string header = "WWW-Authenticate: ";
  const auto begin = refusal.find(header) + header.size();
  security::HttpProof proof(secret_of(kToken));
  *used =
      "Authorization: " + proof.answer(refusal.substr(begin, refusal.find("\r\n", begin) - begin),
                                       {"GET", "/v1/jobs", ""});
  return daemon.exchange("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + *used + "\r\n\r\n");
}

TEST_CASE("Token: a page's proof is for that page, and for once") {
  ServedDaemon daemon(with_token());
  std::string used;
  CHECK_THAT(ask_with_proof(daemon, "/v1/jobs", &used),
             Contains("200 OK") && Contains("\"jobs\":[]") && Contains("DDPRUN-Proof: "));
  CHECK_THAT(daemon.exchange("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + used + "\r\n\r\n"),
             Contains("401 Unauthorized") && Contains("its proof was used before"));
  CHECK_THAT(ask_with_proof(daemon, "/v1/others", &used), Contains("401 Unauthorized"));
}

TEST_CASE("Token: an impostor in the rendezvous' place can't end a job's agent with a word") {
  boost::asio::io_context io{1};
  set_log_level(LogLevel::kError);
  const auto token = secret_of(kToken);
  DaemonOptions options;
  options.token = token;
  auto daemon = std::make_unique<Daemon>(
      io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  const Endpoint place{.host = "127.0.0.1", .port = daemon->port()};
  TestAgent a(io, agent_at(place.port), {token, nullptr});
  REQUIRE(run_until(io, [&] { return !a.rounds.empty(); }));
  daemon.reset();
  auto imposter =
      std::make_unique<Daemon>(io, bind_endpoint(place), with_token("somebody else's token"));
  REQUIRE_FALSE(run_until(
      io, [&] { return a.exit.has_value(); }, 300ms));
  CHECK(a.workers_live);
  imposter.reset();
  daemon = std::make_unique<Daemon>(io, bind_endpoint(place), options);
  // The new daemon doesn't know this session.
  REQUIRE(run_until(io, [&] { return a.exit.has_value(); }));
  CHECK(a.exit->verdict.exit_code == 75);
}

TEST_CASE(
    "Token: a stranger that takes connections and proves nothing is no sign of the rendezvous' "
    "life") {
  using boost::asio::ip::tcp;
  boost::asio::io_context io{1};
  set_log_level(LogLevel::kError);
  const auto token = secret_of(kToken);
  DaemonOptions options;
  options.token = token;
  auto daemon = std::make_unique<Daemon>(
      io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  const tcp::endpoint place(boost::asio::ip::address_v4::loopback(), daemon->port());
  auto agent = agent_at(daemon->port());
  agent.join.timeouts.keep_alive = 300ms;
  TestAgent a(io, agent, {token, nullptr});
  REQUIRE(run_until(io, [&] { return !a.rounds.empty(); }));
  daemon.reset();
  tcp::acceptor stranger(io, place);
  std::function<void()> drop_each = [&] {
    stranger.async_accept([&](boost::system::error_code error, const tcp::socket&) {
      if (!error) drop_each();
    });
  };
  drop_each();
  // The agent treats it as a silent rendezvous: another node may soon have this one's ranks.
  CHECK(run_until(io, [&] { return !a.workers_live; }));
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
