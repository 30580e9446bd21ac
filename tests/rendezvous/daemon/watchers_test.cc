// SPDX-License-Identifier: Apache-2.0
// Status pages: the watchers that are let in, and the frames that they get.
#include "rendezvous/daemon/watchers.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizers.h"
#include "tests/support/secret_file.h"

namespace ddprun::rendezvous {
namespace {

using Catch::Matchers::Equals;
using ddprun::test::Contains;
using membership::FrameStream;
using testing::run_until;
using testing::ServedDaemon;
using namespace std::chrono_literals;

constexpr char kAskPage[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string upgrade_request(const std::string& more = "") {
  return concat("GET /v1/watch HTTP/1.1\r\nHost: localhost:29400\r\n", more,
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
}

// A browser's end: it reads the answer to the upgrade, then frames.
class PageEnd {
 public:
  explicit PageEnd(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // Takes the bytes that have come.
  void read() {
    char some[65536];
    ssize_t num = 0;
    while ((num = ::recv(fd_.get(), some, sizeof some, MSG_DONTWAIT)) > 0) {
      bytes_.append(some, static_cast<std::size_t>(num));
    }
    if (num == 0 || errno != EAGAIN) is_closed = true;
    while (take_frame()) {
    }
  }
  std::string header;
  std::vector<std::string> frames;  // text frames
  bool is_closed = false;
  int num_pings = 0;

 private:
  bool take_frame() {
    if (header.empty()) {
      const auto end = bytes_.find("\r\n\r\n");
      if (end == std::string::npos) return false;
      header = bytes_.substr(0, end + 4);
      bytes_.erase(0, end + 4);
    }
    const auto byte = [this](std::size_t at) {
      return static_cast<std::uint64_t>(static_cast<unsigned char>(bytes_[at]));
    };
    if (bytes_.size() < 2) return false;
    const std::size_t num_more = byte(1) == 126 ? 2 : byte(1) == 127 ? 8 : 0;
    if (bytes_.size() < 2 + num_more) return false;
    std::uint64_t size = num_more == 0 ? byte(1) : 0;
    for (std::size_t i = 0; i < num_more; ++i) size = size << 8 | byte(2 + i);
    if (bytes_.size() < 2 + num_more + size) return false;
    if (byte(0) == 0x81) frames.push_back(bytes_.substr(2 + num_more, size));
    if (byte(0) == 0x89) ++num_pings;
    bytes_.erase(0, 2 + num_more + size);
    return true;
  }

  UniqueFd fd_;
  std::string bytes_;
};

WatcherLimits quick() {
  WatcherLimits limits;
  limits.interval = 5ms;
  limits.status_after = 20ms;
  return limits;
}

// Watchers without a daemon. The test gives the page's content.
struct Watching {
  explicit Watching(const WatcherLimits& limits = quick()) {
    Watchers::Source source;
    source.status = [this] { return Watchers::Status{"{}", key}; };
    source.jobs = [this](std::function<void(const WatchedJobs&)> done) {
      ++num_made;
      const std::string json = grows || ages ? concat(num_made, ' ', jobs) : jobs;
      if (is_kept) return done({json, ages ? jobs : json});
      unkept.push_back(std::move(done));
    };
    source.tail = [this](const Tails::Rank& rank, std::uint64_t request) {
      asked.emplace_back(rank, request);
      return membership::TailRoute{42, {}};
    };
    watchers = std::make_shared<Watchers>(io, limits, std::move(source));
  }
  ~Watching() {
    watchers->stop();
    io.restart();
    io.poll();
  }

  std::unique_ptr<PageEnd> open(int buffer_bytes = 0) {
    const auto listeners = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
    const int listener = listeners.front().get();
    auto page = std::make_unique<PageEnd>(
        connect_to(Endpoint{.host = "127.0.0.1", .port = local_address(listener).port()},
                   Deadline::after(5s)));
    int fd = -1;
    const auto takes = [&] { return fd >= 0 || (fd = ::accept(listener, nullptr, nullptr)) >= 0; };
    REQUIRE(run_until(io, takes));
    boost::asio::ip::tcp::socket socket(io, boost::asio::ip::tcp::v4(), fd);
    if (buffer_bytes > 0) {
      for (const auto& [end, what] : {std::pair(fd, SO_SNDBUF), std::pair(page->fd(), SO_RCVBUF)}) {
        ::setsockopt(end, SOL_SOCKET, what, &buffer_bytes, sizeof buffer_bytes);
      }
    }
    auto frames = std::make_shared<FrameStream>(std::move(socket), FrameStream::Limits());
    http::Request request{"GET", "/v1/watch", {}, "", true};
    request.fields.add("Host", "x");
    request.fields.add("Upgrade", "websocket");
    request.fields.add("Connection", "Upgrade");
    request.fields.add("Sec-WebSocket-Version", "13");
    request.fields.add("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    bool is_open = false;
    frames->async_accept(request, {}, [&](boost::system::error_code error) { is_open = !error; });
    REQUIRE(run_until(io, [&] { return is_open; }));
    watchers->take(frames);
    return page;
  }
  // Runs until the page has so many frames.
  bool gets(PageEnd& page, std::size_t num_frames) {
    return run_until(io, [&] {
      page.read();
      return page.frames.size() >= num_frames;
    });
  }

  boost::asio::io_context io{1};
  std::string key = "key", jobs = "\"jobs\":1";
  bool is_kept = true, grows = false, ages = false;
  std::vector<std::function<void(const WatchedJobs&)>> unkept;
  int num_made = 0;
  std::vector<std::pair<Tails::Rank, std::uint64_t>> asked;
  std::shared_ptr<Watchers> watchers;
};

constexpr char kState[] = R"({"type":"state","status":{},"jobs":1})";
constexpr char kStatus[] = R"({"type":"status","status":{}})";

TEST_CASE("Watchers: a state at first, one for each change and none without") {
  Watching watching;
  const auto page = watching.open();
  REQUIRE(watching.gets(*page, 3));
  CHECK(watching.num_made > 2);
  CHECK(page->frames == std::vector<std::string>{kState, kStatus, kStatus});
  const auto other = watching.open();
  REQUIRE(watching.gets(*other, 1));
  CHECK(other->frames[0] == kState);
  page->frames.clear();
  watching.jobs = "\"jobs\":2";
  const auto is_told = [&] {
    page->read();
    return !page->frames.empty() && page->frames.back() != kStatus;
  };
  REQUIRE(run_until(watching.io, is_told));
  CHECK(page->frames.back() == R"({"type":"state","status":{},"jobs":2})");
  page->frames.clear();
  watching.key = "another leads";
  CHECK(run_until(watching.io, is_told));
}

TEST_CASE("Watchers: no state follows if things only get older, and a newcomer is told their age") {
  Watching watching;
  watching.ages = true;
  const auto page = watching.open();
  REQUIRE(watching.gets(*page, 3));
  CHECK(page->frames[0] != kState);
  CHECK(page->frames[1] == kStatus);
  CHECK(page->frames[2] == kStatus);
  const auto other = watching.open();
  REQUIRE(watching.gets(*other, 1));
  CHECK_THAT(other->frames[0], Contains("\"jobs\":1") && !Equals(page->frames[0]));
}

TEST_CASE("Watchers: nothing is made and nothing is waited for while nobody watches") {
  Watching watching;
  auto page = watching.open();
  REQUIRE(watching.gets(*page, 1));
  page.reset();
  watching.io.restart();
  watching.io.run_for(10s);
  CHECK(watching.io.stopped());  // there is nothing left to do
  CHECK(watching.watchers->size() == 0);
  const int before = watching.num_made;
  watching.jobs = "\"jobs\":2";
  page = watching.open();
  REQUIRE(watching.gets(*page, 1));
  CHECK_THAT(page->frames[0], Contains("\"jobs\":2"));
  CHECK(watching.num_made > before);
}

TEST_CASE("Watchers: a slow reader gets the newest state, and none in between") {
  Watching watching;
  watching.jobs = std::string(512 << 10, 'x');
  watching.grows = true;
  const auto slow = watching.open(32 << 10);
  const auto fast = watching.open();
  const auto has_had_many = [&] {
    fast->read();
    return watching.num_made >= (test::kIsSanitized ? 5 : 20);
  };
  REQUIRE(run_until(watching.io, has_had_many, 30s));
  watching.grows = false;
  watching.jobs = "\"jobs\":\"the newest\"";
  const auto has_newest = [&] {
    slow->read();
    return !slow->frames.empty() && slow->frames.back().find("the newest") != std::string::npos;
  };
  REQUIRE(run_until(watching.io, has_newest, 30s));
  CHECK_THAT(slow->frames[0].substr(0, 60), Contains("\"status\":{},1 x"));
  // The kernel may have taken two at once, and the last one that was made before may come between.
  CHECK(slow->frames.size() <= 4);
  CHECK(slow->frames.size() < static_cast<std::size_t>(watching.num_made));
}

TEST_CASE("Watchers: the last of too many is told so") {
  WatcherLimits limits = quick();
  limits.num = 1;
  Watching watching(limits);
  const auto page = watching.open(), other = watching.open();
  CHECK(run_until(watching.io, [&] {
    other->read();
    return other->is_closed;
  }));
  CHECK(other->frames == std::vector<std::string>{
                             R"({"type":"end","why":"1 pages watch already: close one of them"})"});
  CHECK(watching.gets(*page, 1));
}

void say(const PageEnd& page, const std::string& text) {
  const std::string said = testing::text_frame(text);
  REQUIRE(::send(page.fd(), said.data(), said.size(), 0) == static_cast<ssize_t>(said.size()));
}

TEST_CASE("Watchers: a page that looks at a rank is told what that prints, until it looks away") {
  Watching watching;
  const auto page = watching.open();
  REQUIRE(watching.gets(*page, 1));
  say(*page, R"({"tail":{"run_id":"job","rank":3}})");
  REQUIRE(run_until(watching.io, [&] { return watching.asked.size() == 1; }));
  CHECK(watching.asked[0].first == Tails::Rank{"job", 3});
  page->frames.clear();
  watching.watchers->said(41, {watching.asked[0].second, {"forged"}, ""});
  watching.watchers->said(42, {watching.asked[0].second, {"<b>step</b>"}, ""});
  const auto is_tail = [&] {
    page->read();
    return !page->frames.empty() && page->frames.back() != kStatus;
  };
  REQUIRE(run_until(watching.io, is_tail));
  CHECK(page->frames.back() ==
        R"({"type":"tail","run_id":"job","rank":3,"lines":["<b>step</b>"],"note":""})");
  say(*page, R"({"tail":null})");
  say(*page, R"({"tail":{"run_id":"job","rank":4}})");
  REQUIRE(run_until(watching.io, [&] { return watching.asked.size() == 2; }));
  CHECK(watching.asked[1].first == Tails::Rank{"job", 4});
}

TEST_CASE("Watchers: a page that has gone looks at nothing any more") {
  WatcherLimits limits = quick();
  limits.tails.interval = 5ms;
  limits.tails.deadline = 5ms;
  Watching watching(limits);
  auto page = watching.open();
  say(*page, R"({"tail":{"run_id":"job","rank":3}})");
  REQUIRE(run_until(watching.io, [&] { return watching.asked.size() == 3; }));
  page.reset();
  watching.io.restart();
  watching.io.run_for(10s);
  CHECK(watching.io.stopped());  // there is nothing left to do
}

TEST_CASE("Watch: a page's message names a rank or none, any other is an error") {
  CHECK(read_page_message(R"({"tail":null})") == std::nullopt);
  CHECK(read_page_message(R"({"tail":{"run_id":"a \u00e9","rank":0},"more":1})") ==
        Tails::Rank{"a \u00e9", 0});
  for (const char* text :
       {"", "{}", "7", "[]", R"({"tail":3})", R"({"tail":{}})", R"({"tail":{"run_id":"a"}})",
        R"({"tail":{"run_id":"a","rank":-1}})", R"({"tail":{"run_id":"a","rank":2147483648}})",
        R"({"tail":{"run_id":7,"rank":1}})", "{\"tail\":[[[[[[[[[[]]]]]]]]]]}"}) {
    INFO(text);
    CHECK(ddprun::test::code_of([&] { read_page_message(text); }) == ErrorCode::kProtocol);
  }
}

TEST_CASE("Watchers: a page that says something else is told, and closed") {
  Watching watching;
  const auto page = watching.open();
  say(*page, "{}");
  CHECK(run_until(watching.io, [&] {
    page->read();
    return page->is_closed;
  }));
  CHECK_THAT(page->frames.back(),
             Contains("a page says nothing here but whose output it looks at"));
  CHECK(watching.watchers->size() == 0);
}

TEST_CASE("Watchers: a page that answers no ping is closed") {
  WatcherLimits limits = quick();
  limits.ping_interval = 5ms;
  limits.silence = 60ms;
  Watching watching(limits);
  const auto page = watching.open();
  CHECK(run_until(watching.io, [&] {
    page->read();
    return page->is_closed;
  }));
  CHECK(page->num_pings > 0);
  CHECK(watching.watchers->size() == 0);
}

TEST_CASE("Watchers: a state that is too large is not sent, its size is") {
  WatcherLimits limits = quick();
  limits.state_bytes = 100;
  Watching watching(limits);
  watching.jobs = std::string(200, 'x');
  const auto page = watching.open();
  REQUIRE(watching.gets(*page, 1));
  CHECK(page->frames[0] == R"({"type":"too_large","bytes":229})");
}

TEST_CASE("Watchers: a large state is told in turns, and reaches all who watch") {
  WatcherLimits limits = quick();
  limits.interval = 1h;
  limits.state_bytes = 8 << 20;
  Watching watching(limits);
  watching.is_kept = false;
  std::vector<std::unique_ptr<PageEnd>> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(watching.open());
  REQUIRE(run_until(watching.io, [&] { return !watching.unkept.empty(); }));
  const std::string large(3 << 20, 'x');
  watching.unkept.front()({large, large});
  for (const auto& page : pages) {
    CHECK(run_until(watching.io, [&] {
      page->read();
      return !page->frames.empty() && page->frames.back().size() > large.size();
    }));
  }
}

TEST_CASE("Watchers: no other state is made until one is kept, and a page hears the status") {
  Watching watching;
  watching.is_kept = false;
  const auto page = watching.open();
  REQUIRE(watching.gets(*page, 3));
  CHECK(page->frames == std::vector<std::string>{kStatus, kStatus, kStatus});
  REQUIRE(watching.unkept.size() == 1);
  watching.unkept.front()({watching.jobs, watching.jobs});
  REQUIRE(watching.gets(*page, 4));
  CHECK(page->frames[3] == kState);
}

TEST_CASE("Watchers: all are told why it ends, and what was made for them is dropped") {
  Watching watching;
  watching.is_kept = false;
  const auto page = watching.open();
  REQUIRE(run_until(watching.io, [&] { return !watching.unkept.empty(); }));
  watching.watchers->end_all("another one leads");
  CHECK(run_until(watching.io, [&] {
    page->read();
    return page->is_closed;
  }));
  CHECK(page->frames.back() == R"({"type":"end","why":"another one leads"})");
  watching.is_kept = true;
  watching.jobs = "\"jobs\":\"of a later time\"";
  const auto later = watching.open();
  watching.unkept.front()({"\"jobs\":\"of an earlier time\"", "earlier"});
  REQUIRE(watching.gets(*later, 2));
  CHECK_THAT(later->frames[0] + later->frames[1],
             Contains("of a later time") && !Contains("of an earlier time"));
}

TEST_CASE("Watch: clocks and counts of requests are no change, another leader is one") {
  DaemonStatus status;
  const std::string before = watch_key(status);
  status.uptime = 5s;
  status.requests.number = 7;
  CHECK(watch_key(status) == before);
  status.role = RoleStatus{true, ""};
  const std::string leads = watch_key(status);
  CHECK(leads != before);
  status.role->leads = false;
  CHECK(watch_key(status) != leads);
}

TEST_CASE("Status page: one document that asks for nothing, with a policy that says so") {
  ServedDaemon served;
  const std::string answer = served.exchange(kAskPage);
  CHECK_THAT(answer.substr(0, answer.find("\r\n\r\n")),
             Contains("200 OK") && Contains("Content-Type: text/html; charset=utf-8") &&
                 Contains("Content-Security-Policy: default-src 'none'; script-src 'sha256-") &&
                 Contains("connect-src 'self'") && Contains("frame-ancestors 'none'") &&
                 !Contains("unsafe") && Contains("X-Content-Type-Options: nosniff") &&
                 Contains("Referrer-Policy: no-referrer") && Contains("Cache-Control: no-store"));
  CHECK_THAT(answer, Contains("<!doctype html>") && !Contains("http://") && !Contains("https://") &&
                         !Contains("innerHTML"));
  CHECK_THAT(served.exchange("GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("426 Upgrade Required"));
}

TEST_CASE("Status page: a page of another origin may not watch") {
  ServedDaemon served;
  for (const char* origin :
       {"http://elsewhere", "http://localhost:29401", "null", "localhost:29400",
        "http://localhost:29400.elsewhere", "ftp://localhost:29400"}) {
    INFO(origin);
    CHECK_THAT(served.exchange(upgrade_request(concat("Origin: ", origin, "\r\n"))),
               Contains("403 Forbidden") && Contains("a page of another origin is told nothing"));
  }
  for (const char* origin :
       {"Origin: http://localhost:29400\r\n", "Origin: https://localhost:29400\r\n", ""}) {
    INFO(origin);
    PageEnd page(served.connect());
    const std::string request = upgrade_request(origin);
    send_all(page.fd(), request.data(), request.size(), Deadline::after(5s));
    const Deadline deadline = Deadline::after(10s);
    while (page.frames.empty() && !deadline.expired()) page.read();
    CHECK_THAT(page.header, Contains("101 Switching Protocols"));
    REQUIRE_FALSE(page.frames.empty());
    CHECK_THAT(page.frames[0],
               Contains("{\"type\":\"state\",\"status\":{\"version\":") &&
                   Contains("\"jobs\":{\"version\":") &&
                   Contains("\"hidden_nodes\":[],\"hidden_jobs\":0,\"hidden_finished\":0}"));
  }
}

TEST_CASE("Status page: there is none if a token is wanted, but a line that says how to look") {
  DaemonOptions options;
  options.token = ddprun::test::secret_of("correct horse battery staple");
  ServedDaemon served(options);
  CHECK_THAT(served.exchange(kAskPage), Contains("401 Unauthorized") &&
                                            Contains("ddprunctl open --token-file=PATH") &&
                                            !Contains("<html"));
  CHECK_THAT(served.exchange(upgrade_request()), Contains("401 Unauthorized"));
}

TEST_CASE("Status page: a standby says who leads, in place of it and of its updates") {
  DaemonOptions options;
  options.stands_by = true;
  ServedDaemon served(options);
  CHECK_THAT(served.exchange(kAskPage), Contains("503 Service Unavailable") && !Contains("<html"));
  CHECK_THAT(served.exchange(upgrade_request()), Contains("503 Service Unavailable"));
}

TEST_CASE("Status page: it is told of a job as soon as there is one") {
  DaemonOptions options;
  options.watchers = quick();
  ServedDaemon served(options);
  PageEnd page(served.connect());
  const std::string request = upgrade_request();
  send_all(page.fd(), request.data(), request.size(), Deadline::after(5s));
  const Deadline deadline = Deadline::after(10s);
  const auto hears = [&](const std::string& text) {
    while (!deadline.expired()) {
      page.read();
      if (!page.frames.empty() && page.frames.back().find(text) != std::string::npos) return true;
    }
    return false;
  };
  REQUIRE(hears("\"jobs\":[]"));
  const UniqueFd agent = served.upgrade();
  membership::AgentEnvelope envelope;
  envelope.message = testing::make_join("gpu07", 2);
  const std::string join = testing::text_frame(membership::encode(envelope));
  send_all(agent.get(), join.data(), join.size(), Deadline::after(5s));
  CHECK(hears("\"host\":\"gpu07\""));
}

// A daemon, one node of a job whose rank 1 prints something, and a page.
struct Printing {
  explicit Printing(const membership::Join& join, bool watch_output = true) {
    DaemonOptions options;
    options.watch_output = watch_output;
    options.watchers = quick();
    options.watchers.tails.deadline = 50ms;
    auto listeners = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
    daemon = std::make_unique<Daemon>(io, std::move(listeners), options);
    agent = std::make_unique<testing::TestAgent>(io, daemon->port(), join);
    agent->prints = [](const membership::agent_action::ReadTail& wanted) {
      return membership::Tail{wanted.request, {concat("rank ", wanted.global_rank)}, ""};
    };
    REQUIRE(run_until(io, [&] { return agent->workers_live; }));
    page = std::make_unique<PageEnd>(
        connect_to(Endpoint{.host = "127.0.0.1", .port = daemon->port()}, Deadline::after(5s)));
    const std::string request = upgrade_request();
    send_all(page->fd(), request.data(), request.size(), Deadline::after(5s));
    REQUIRE(hears("\"phase\":\"running\""));
    say(*page, R"({"tail":{"run_id":"job","rank":1}})");
  }
  bool hears(const std::string& text) {
    return run_until(io, [&] {
      page->read();
      return std::ranges::any_of(page->frames, [&](const std::string& frame) {
        return frame.find(text) != std::string::npos;
      });
    });
  }

  boost::asio::io_context io{1};
  std::unique_ptr<Daemon> daemon;
  std::unique_ptr<testing::TestAgent> agent;
  std::unique_ptr<PageEnd> page;
};

TEST_CASE("Status page: it is told what a rank prints, by the rank's agent") {
  Printing f(testing::make_join("gpu07", 1));
  CHECK(f.hears(R"({"type":"tail","run_id":"job","rank":1,"lines":["rank 1"],"note":""})"));
  f.agent->kill();
  // The known lines stay, with the reason why there are no newer ones.
  CHECK(f.hears(R"("lines":["rank 1"],"note":"no job of that name runs here")"));
}

TEST_CASE("Status page: no agent is asked with --watch-output=off, and the page is told why") {
  Printing f(testing::make_join("gpu07", 1), false);
  bool was_asked = false;
  f.agent->prints = [&](const membership::agent_action::ReadTail& wanted) {
    was_asked = true;
    return membership::Tail{wanted.request, {"secret"}, ""};
  };
  CHECK(f.hears("\"watch_output\":false"));
  CHECK(
      f.hears("\"lines\":[],\"note\":\"switched off for all jobs: this ddprund runs with "
              "--watch-output=off\""));
  CHECK_FALSE(was_asked);
}

TEST_CASE("Status page: it is told that an agent doesn't answer, or is too old to be asked") {
  membership::Join join = testing::make_join("gpu07", 1);
  SECTION("no answer") {
    Printing f(join);
    f.agent->prints = nullptr;
    CHECK(f.hears(R"("note":"its agent has not answered for 0.05 s")"));
  }
  SECTION("too old") {
    join.version = join.oldest_version = 1;
    Printing f(join);
    CHECK(f.hears("is of an older version, which tells none"));
    CHECK(f.agent->workers_live);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
