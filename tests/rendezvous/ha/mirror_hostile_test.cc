// SPDX-License-Identifier: Apache-2.0
// A leader that does not keep to the protocol of a mirror, and one whose standby can't keep up.
#include <sqlite3.h>

#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/ha/mirror_keeper.h"
#include "rendezvous/ha/mirror_turns.h"
#include "rendezvous/ha/standby_patience.h"
#include "tests/rendezvous/ha/frame_relay.h"
#include "tests/rendezvous/ha/mirror_pair.h"
#include "tests/support/log_lines.h"

namespace ddprun::ha::testing {
namespace {

using membership::FrameStream;
using test::Contains;

std::string part_of(mirror::Transfer transfer, bool is_last, std::uint64_t number,
                    std::string_view rows) {
  mirror::Part part;
  part.transfer = transfer;
  part.is_last = is_last;
  part.number = number;
  part.rows = rows;
  return encode(part);
}

std::string in_sync() {
  mirror::InSync said;
  said.term.id = kTerm;
  said.term.number = 4;
  said.line.emplace_back(kTerm);
  return encode(mirror::CalledMessage(said));
}

// Says hello; what it does once a standby wants to mirror it is the test's affair.
class FakeLeader {
 public:
  FakeLeader(boost::asio::io_context& io, std::function<void(FrameStream&)> mirrored)
      : mirrored_(std::move(mirrored)),
        port_(io, [this](const UpgradingPort::Frames& frames) { take(frames); }) {}
  ~FakeLeader() {
    for (const auto& frames : frames_) frames->close();
  }
  std::uint16_t port() const { return port_.port(); }
  std::vector<std::string> heard;  // after `mirror`

 private:
  void take(const UpgradingPort::Frames& frames) {
    frames_.push_back(frames);
    FrameStream::Handlers handlers;
    handlers.ended = [](const std::string&) {};
    handlers.frame = [this, &its = *frames](std::string_view text) {
      const auto message = mirror::decode_caller_message(text);
      if (std::holds_alternative<mirror::Hello>(message)) {
        mirror::Hello hello;
        hello.state.name = "a:29400";
        hello.state.leads = true;
        hello.state.rows = RowsKind::kLeads;
        hello.state.term.id = kTerm;
        hello.state.line.emplace_back(kTerm);
        its.send(mirror::encode(mirror::CalledMessage(hello)));
      } else if (std::holds_alternative<mirror::Mirror>(message)) {
        its.send(R"({"type":"welcome","boot":"x"})");
        mirrored_(its);
      } else {
        heard.emplace_back(text);
      }
    };
    frames->start(std::move(handlers));
  }

  const std::function<void(FrameStream&)> mirrored_;
  std::vector<UpgradingPort::Frames> frames_;  // second owners: their operations
  UpgradingPort port_;
};

struct Lost {
  explicit Lost(std::function<void(FrameStream&)> mirrored) : leader(io, std::move(mirrored)) {}
  LostLeader await() {
    REQUIRE(run_until(io, [this] { return !standby.lost.empty(); }));
    CHECK(standby.in_sync.empty());
    return standby.lost[0];
  }
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  FakeLeader leader;
  Standby standby{io, leader.port()};
};

TEST_CASE("Mirror: a leader that sends more than its window is left") {
  // So many rows that they come faster than a disk takes them.
  std::string rows;
  while (rows.size() + 9 <= kMaxPartBytes) rows += std::string("\0\0\0\1\0\0\0\0k", 9);
  Lost lost([&](FrameStream& frames) {
    for (int i = 0; i < 15; ++i) {
      frames.send_binary(part_of(mirror::Transfer::kSnapshot, false, 1, rows));
    }
  });
  const LostLeader its = lost.await();
  CHECK(its.why == "it sends more than 2097152 bytes ahead");
  CHECK_FALSE(its.was_in_sync);
}

TEST_CASE("Mirror: in_sync counts after the snapshot alone, and once") {
  const auto snapshot = part_of(mirror::Transfer::kSnapshot, true, 1, "");
  SECTION("before it") {
    Lost lost([](FrameStream& frames) { frames.send(in_sync()); });
    CHECK_THAT(lost.await().why, Contains("in_sync before its snapshot"));
    CHECK_FALSE(Standby::synced_of(lost.standby.stop()));
  }
  SECTION("inside of it") {
    Lost lost([](FrameStream& frames) {
      frames.send_binary(part_of(mirror::Transfer::kSnapshot, false, 1, ""));
      frames.send(in_sync());
    });
    CHECK_THAT(lost.await().why, Contains("in_sync before its snapshot"));
    CHECK_FALSE(Standby::synced_of(lost.standby.stop()));
  }
  SECTION("twice") {
    const test::LogLines quiet;
    boost::asio::io_context io{1};
    FakeLeader leader(io, [&](FrameStream& frames) {
      frames.send_binary(snapshot);
      frames.send(in_sync());
      frames.send(in_sync());
    });
    Standby standby(io, leader.port());
    REQUIRE(run_until(io, [&] { return !standby.lost.empty(); }));
    CHECK(standby.lost[0].why == "it says in_sync again");
  }
}

TEST_CASE("Mirror: what a leader sent before it said `yours` is taken, and nothing after it") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  const std::string row("\0\0\0\1\0\0\0\1k1", 10), late("\0\0\0\1\0\0\0\1k2", 10);
  FakeLeader leader(io, [&](FrameStream& frames) {
    frames.send_binary(part_of(mirror::Transfer::kSnapshot, true, 1, row));
    frames.send(in_sync());
    frames.send(encode(mirror::CalledMessage(mirror::Yours{})));
    frames.send_binary(part_of(mirror::Transfer::kBatch, true, 2, late));
  });
  Standby standby(io, leader.port());
  standby.stops_when_lost = true;
  REQUIRE(run_until(io, [&] { return standby.kept.has_value(); }));
  CHECK(standby.lost[0].is_yours);
  CHECK(standby.lost[0].was_in_sync);
  CHECK(Standby::job_rows(*standby.kept) == journal::Rows{{"k", "1"}});
}

TEST_CASE(
    "Mirror: the rows of a standby are a copy until it is in sync, and what it gave up stays") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  FakeLeader leader(io, [&](FrameStream& frames) {
    frames.send_binary(part_of(mirror::Transfer::kSnapshot, true, 1, ""));
  });
  Standby standby(io, 1);
  standby.stop();
  {
    journal::JournalFile file(standby.directory.path("state"), journal::Durability::kProcess);
    file.load();
    file.commit({{kTermRow, "mine"}, {kStandbyRow, "x"}, {"jobs/1/job", "{}"}});
    file.commit(term_given_up(kTerm, {}));
  }
  standby.start(leader.port());
  REQUIRE(run_until(io, [&] { return leader.heard.size() == 2; }));  // got, ack
  const MirroredJournal kept = standby.stop();
  const LeaderRows rows = read_leader_rows(kept.content.rows);
  CHECK(rows.kind == RowsKind::kCopy);
  CHECK(rows.leader == "a:29400");
  CHECK(rows.given_up == TermLine{kTerm});
  CHECK(kept.content.rows.size() == 2);
}

TEST_CASE(
    "Mirror: a standby's journal that was changed on its disk meanwhile is nothing to lead with") {
  test::TempDirectory directory;
  const std::string state = directory.path("state");
  journal::JournalFile(state, journal::Durability::kProcess)
      .commit({{"jobs/1/job", "{}"}, {"jobs/2/job", "{}"}});
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((state + "/journal.db").c_str(), &database) == SQLITE_OK);
  CHECK(sqlite3_exec(database, "UPDATE rows SET content = '[]' WHERE key = 'jobs/1/job'", nullptr,
                     nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
  // Not loaded: at its start it was whole.
  auto file = std::make_unique<journal::JournalFile>(state, journal::Durability::kProcess);
  boost::asio::io_context io{1};
  std::optional<MirroredJournal> kept;
  const auto post = [&io](std::function<void()> call) { boost::asio::post(io, std::move(call)); };
  MirrorKeeper keeper(std::move(file), post, {}, 20ms, 20ms);
  keeper.stop([&kept](MirroredJournal its) { kept = std::move(its); });
  REQUIRE(run_until(io, [&] { return kept.has_value(); }));
  CHECK(kept->trouble == "row \"jobs/1/job\" was changed on the disk");
}

TEST_CASE("Mirror: a standby that can't keep up with what changes is left") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  const auto shelf = std::make_shared<Shelf>();
  LeaderOptions options;
  options.catch_up = 0ms;
  options.page_bytes = 1000;
  Leader leader(io, shelf, options);
  FrameRelay relay(io, leader.port());
  Standby standby(io, relay.port());
  REQUIRE(run_until(io, [&] { return !standby.copying.empty(); }));
  relay.hold_answers(true);  // so its snapshot is not acknowledged
  for (int i = 1; i <= 5; ++i) {
    leader.commit({{"jobs/" + std::to_string(i) + "/state", std::string(2000, 'x')}}, i);
  }
  REQUIRE(run_until(io, [&] { return leader.has_said(5); }));
  relay.hold_answers(false);
  const bool is_over =
      run_until(io, [&] { return !leader.standbys_lost.empty() || standby.client->is_in_sync(); });
  REQUIRE(is_over);
  // Where the snapshot had them all there was nothing to catch up with.
  if (leader.standbys_lost.empty()) return;
  CHECK(leader.standbys_lost[0].why == "rows change faster than it takes them, for 0 ms");
  CHECK(leader.deposed.empty());
}

TEST_CASE("Mirror: a standby that was lost while in sync is kept out for a while, over terms") {
  const test::LogLines quiet;
  boost::asio::io_context io{1};
  const auto shelf = std::make_shared<Shelf>();
  Leader leader(io, shelf);
  {
    Standby standby(io, leader.port());
    REQUIRE(run_until(io, [&] { return standby.client->is_in_sync(); }));
  }
  REQUIRE(run_until(io, [&] { return !leader.deposed.empty(); }));
  const auto door = leader.door;
  leader.stop();
  Leader next(io, shelf);
  door->set_server(next.server);
  Standby standby(io, next.port());
  REQUIRE(run_until(io, [&] { return !standby.lost.empty(); }));
  CHECK(standby.lost[0].why ==
        "takes this standby not in: it was lost while it was in sync; it may come again soon");
  CHECK(run_until(io, [&] { return standby.client->is_in_sync(); }));
}

TEST_CASE("Standby patience: each loss costs it longer, until it was in sync for long") {
  using std::chrono::seconds;
  StandbyPatience patience;
  Clock::time_point now = Clock::now();
  CHECK_FALSE(patience.wait(now));
  for (int expected : {1, 2, 4, 8, 16, 32, 60, 60}) {
    patience.is_in_sync(now);
    now += seconds(59);
    patience.was_lost(now);
    CHECK(patience.wait(now) == seconds(expected));
    now += seconds(expected);
    CHECK_FALSE(patience.wait(now));
  }
  patience.is_in_sync(now);
  now += seconds(60);
  patience.was_lost(now);
  CHECK(patience.wait(now) == seconds(1));
}

TEST_CASE("Mirror turns: they come in the order in which they were asked for, and end at once") {
  MirrorTurns turns;
  std::vector<int> order;  // of whose turn it is
  std::thread second, third;
  {
    const MirrorTurn first(turns);
    second = std::thread([&] {
      const MirrorTurn turn(turns);
      order.push_back(2);
    });
    while (turns.num_waiting() < 1) std::this_thread::yield();
    third = std::thread([&] {
      const MirrorTurn turn(turns);
      order.push_back(3);
    });
    while (turns.num_waiting() < 2) std::this_thread::yield();
    order.push_back(1);
  }
  second.join();
  third.join();
  CHECK(order == std::vector{1, 2, 3});

  std::string ended;
  {
    const MirrorTurn hangs(turns);
    std::thread waits([&] {
      try {
        const MirrorTurn turn(turns);
      } catch (const std::exception& error) {
        ended = error.what();
      }
    });
    while (turns.num_waiting() < 1) std::this_thread::yield();
    turns.cancel();
    waits.join();
  }
  CHECK(ended == "the mirror is being ended");
}

}  // namespace
}  // namespace ddprun::ha::testing
