// SPDX-License-Identifier: Apache-2.0
// The two sides of a pair meet: who calls, who is called, and what each hears of the other one.
#include <functional>
#include <string>

#include "rendezvous/ha/mirror_codec.h"
#include "tests/rendezvous/ha/mirror_pair.h"
#include "tests/support/log_lines.h"

namespace ddprun::ha::testing {
namespace {

using membership::FrameStream;
using test::Contains;

constexpr char kOther[] = "fedcba9876543210fedcba9876543210";

PairState state_named(const std::string& name) {
  PairState state;
  state.name = name;
  return state;
}

// What a caller heard.
struct Heard {
  Heard(boost::asio::io_context& its_io, std::uint16_t port,
        std::chrono::milliseconds patience = 10s)
      : io(its_io) {
    PeerCallerOptions options;
    options.peer = {"127.0.0.1", port};
    options.last_pause = 20ms;
    options.attempt_limit = options.answer_limit = patience;
    options.state = [this] { return mine; };
    PeerCaller::Handlers handlers;
    handlers.met = [this](const PairState& theirs, Call call) {
      met.push_back(theirs);
      if (mirrors) frames = call.mirror();
    };
    handlers.away = [this](const Away& away) { aways.push_back(away); };
    caller = std::make_unique<PeerCaller>(io, std::move(options), std::move(handlers));
  }
  ~Heard() {
    if (frames) frames->close();
  }
  const Away& first_away() {
    REQUIRE(run_until(io, [this] { return !aways.empty(); }));
    return aways[0];
  }

  boost::asio::io_context& io;
  PairState mine = state_named("b:1");
  bool mirrors = false;
  std::vector<PairState> met;
  std::vector<Away> aways;
  std::shared_ptr<FrameStream> frames;  // second owner: its operations
  std::unique_ptr<PeerCaller> caller;
};

struct Door {
  explicit Door(boost::asio::io_context& io) {
    MirrorDoorOptions options;
    options.state = [this] { return mine; };
    options.met = [this](const PairState& theirs) {
      met.push_back(theirs);
      if (answers_met) mine.given_up = theirs.given_up;
    };
    door = std::make_shared<MirrorDoor>(io, std::move(options));
    port = std::make_unique<UpgradingPort>(io, [this](const UpgradingPort::Frames& frames) {
      if (door) door->take(frames, nullptr);
    });
  }

  PairState mine = state_named("a:1");
  bool answers_met = false;
  std::vector<PairState> met;
  std::shared_ptr<MirrorDoor> door;
  std::unique_ptr<UpgradingPort> port;
};

TEST_CASE("Pair: two meet again and again, and each hears how the other one is doing then") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  Door door(io);
  door.answers_met = true;
  Heard heard(io, door.port->port());
  heard.mine.given_up = {kOther};
  REQUIRE(run_until(io, [&] { return heard.met.size() >= 2; }));
  CHECK(heard.met[0].name == "a:1");
  CHECK(heard.met[0].given_up == TermLine{kOther});  // what it heard counts in its answer
  CHECK(door.met[0] == heard.mine);
  heard.mine.num_jobs = 7;
  const std::size_t before = door.met.size();
  REQUIRE(run_until(io, [&] { return door.met.size() > before + 1; }));
  CHECK(door.met.back().num_jobs == 7);
  CHECK(heard.aways.empty());
}

TEST_CASE("Pair: nobody is called while it pauses, and at once where that is asked for") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  Door door(io);
  Heard heard(io, door.port->port());
  heard.mirrors = true;  // its caller pauses then
  REQUIRE(run_until(io, [&] { return heard.met.size() == 1; }));
  CHECK_FALSE(run_until(
      io, [&] { return heard.met.size() > 1; }, 100ms));
  heard.mirrors = false;
  SECTION("resumed") { heard.caller->resume(); }
  SECTION("called now") { heard.caller->call_now(); }
  CHECK(run_until(io, [&] { return heard.met.size() > 2; }));
  heard.caller->pause();
  const std::size_t num_met = heard.met.size();
  CHECK_FALSE(run_until(
      io, [&] { return heard.met.size() > num_met; }, 100ms));
}

TEST_CASE(
    "Pair: where nothing listens is told apart from silence, and from who can't be talked to") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  std::function<void(const UpgradingPort::Frames&)> take = [](const auto&) {};
  FrameStream::Handlers handlers;
  handlers.ended = [](const std::string&) {};
  UpgradingPort port(io, [&](const UpgradingPort::Frames& frames) { take(frames); });
  const auto says = [&](const std::string& text) {
    take = [&handlers, text](const UpgradingPort::Frames& frames) {
      handlers.frame = [frames = std::weak_ptr<FrameStream>(frames), text](std::string_view) {
        if (const auto its = frames.lock()) its->send(text);
      };
      frames->start(handlers);
    };
  };
  SECTION("nothing listens") {
    port.close();
    Heard heard(io, 1);
    CHECK(heard.first_away().kind == Away::Kind::kNothingListens);
    CHECK(heard.aways[0].what == "is away: connection refused (nothing listens there)");
    CHECK_FALSE(run_until(
        io, [&] { return heard.aways.size() > 1; }, 100ms));  // it is said once
  }
  SECTION("who listens says nothing") {
    boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::address_v4::loopback(), 0});
    Heard heard(io, silent.local_endpoint().port(), 300ms);
    CHECK(heard.first_away().kind == Away::Kind::kSilent);
  }
  SECTION("it takes the call, and says no hello") {
    UpgradingPort::Frames kept;
    take = [&](const UpgradingPort::Frames& frames) { kept = frames; };
    Heard heard(io, port.port(), 500ms);
    CHECK(heard.first_away().kind == Away::Kind::kSilent);
    if (kept) {  // else a slow machine did not get that far
      CHECK_THAT(heard.aways[0].what, Contains("it took the call, and said nothing in 500 ms"));
      kept->close();
    }
  }
  SECTION("it ends the call") {
    take = [](const UpgradingPort::Frames& frames) { frames->close(); };
    Heard heard(io, port.port());
    CHECK(heard.first_away().kind == Away::Kind::kSilent);
  }
  SECTION("it speaks another version") {
    says(R"({"type":"hello","version":2,"name":"a:1"})");
    Heard heard(io, port.port());
    CHECK(heard.first_away().kind == Away::Kind::kRefused);
    CHECK(heard.aways[0].what ==
          "speaks version 2 of the mirror's protocol, and this ddprund version 1: install the "
          "same ddprund on both");
  }
  SECTION("it refuses") {
    says(R"({"type":"refused","reason":"not\nyou"})");
    Heard heard(io, port.port());
    CHECK(heard.first_away().what == "refused this ddprund: not\\nyou");
  }
  SECTION("it makes no sense") {
    says(R"({"type":"yours"})");
    Heard heard(io, port.port());
    CHECK(heard.first_away().kind == Away::Kind::kRefused);
    CHECK(heard.aways[0].what == "makes no sense: its first message is no hello");
  }
}

TEST_CASE("Pair: who wants to mirror one that stands by is told so") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  Door door(io);
  Heard heard(io, door.port->port());
  heard.mirrors = true;
  REQUIRE(run_until(io, [&] { return heard.frames != nullptr; }));
  std::string answer;
  FrameStream::Handlers handlers;
  handlers.frame = [&](std::string_view text) { answer = text; };
  handlers.ended = [](const std::string&) {};
  heard.frames->start(std::move(handlers));
  heard.frames->send(mirror::encode(mirror::CallerMessage(mirror::Mirror{})));
  REQUIRE(run_until(io, [&] { return !answer.empty(); }));
  CHECK(answer == R"({"type":"refused","reason":"a:1 stands by"})");
}

TEST_CASE("Pair: of callers that come to nothing the oldest goes first") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  Door door(io);
  std::vector<std::unique_ptr<Heard>> callers;
  for (int i = 0; i < 9; ++i) {
    callers.push_back(std::make_unique<Heard>(io, door.port->port()));
    Heard& heard = *callers.back();
    heard.mirrors = true;
    REQUIRE(run_until(io, [&] { return heard.frames != nullptr; }));
    FrameStream::Handlers handlers;
    handlers.frame = [](std::string_view) {};
    handlers.ended = [](const std::string&) {};
    heard.frames->start(std::move(handlers));
  }
  CHECK(run_until(io, [&] { return callers[0]->frames->is_closed(); }));
  for (int i = 1; i < 9; ++i)
    CHECK_FALSE(callers[static_cast<std::size_t>(i)]->frames->is_closed());
  door.door.reset();  // with all that it has
  CHECK(run_until(io, [&] { return callers[8]->frames->is_closed(); }));
}

}  // namespace
}  // namespace ddprun::ha::testing
