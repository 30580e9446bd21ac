// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_client.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/ha/mirror_server.h"

#include <signal.h>
#include <sys/resource.h>

#include <random>
#include <string>

#include "rendezvous/membership/link_connector.h"
#include "tests/rendezvous/ha/frame_relay.h"
#include "tests/rendezvous/ha/mirror_pair.h"
#include "tests/support/log_lines.h"

namespace ddprun::ha::testing {
namespace {

using Catch::Matchers::StartsWith;
using journal::Batch;
using journal::Durability;
using journal::JournalFile;
using journal::Rows;
using test::Contains;

const SyncedWith kSynced = synced_with_leader();

constexpr char kHello[] =
    R"({"type":"hello","version":1,"name":"x","first":false,"leads":false,"rows":"empty",)"
    R"("jobs":0,"held":0,"given_up":[]})";
constexpr char kMirror[] = R"({"type":"mirror"})";

struct Mirror {
  explicit Mirror(const LeaderOptions& options = {}) : leader(io, shelf, options) {}
  void attach() { standby = std::make_unique<Standby>(io, leader.port()); }
  void run_until_in_sync() {
    REQUIRE(run_until(io, [&] { return standby && standby->client->is_in_sync(); }));
  }
  void commit(Batch batch, int number) {
    leader.commit(std::move(batch), number);
    REQUIRE(run_until(io, [&] { return leader.has_said(number); }));
  }

  const test::LogLines lines;
  boost::asio::io_context io{1};
  const std::shared_ptr<Shelf> shelf = std::make_shared<Shelf>();  // second owner: its file
  Leader leader;
  std::unique_ptr<Standby> standby;
};

TEST_CASE("Mirror: a standby has all rows but each side's own") {
  Mirror mirror;
  mirror.shelf->commit({{"jobs/1/job", "{}"}, {"jobs/70/job", "copied"}, {"leader/term", "mine"}});
  mirror.attach();
  mirror.run_until_in_sync();
  CHECK(mirror.leader.journal->is_shared());
  CHECK(mirror.leader.mirrored_by == std::vector<std::string>{"b:29400"});
  CHECK(mirror.standby->copying == std::vector<std::string>{"a:29400"});
  mirror.commit({{"jobs/7/job", "told"}, {"jobs/1/job", std::nullopt}}, 1);
  CHECK(mirror.shelf->rows().at("leader/standby") == R"({"name":"b:29400"})");
  CHECK(decode_term_row(mirror.shelf->rows().at("leader/term"))->term.id == kTerm);

  const MirroredJournal kept = mirror.standby->stop();
  CHECK(Standby::job_rows(kept) == Rows{{"jobs/7/job", "told"}, {"jobs/70/job", "copied"}});
  CHECK(Standby::synced_of(kept) == kSynced);
  CHECK(kept.content.rows.at("leader/synced") == encode_synced_row(kSynced));
  CHECK_FALSE(kept.content.rows.contains("leader/term"));
  CHECK(kept.trouble.empty());
}

TEST_CASE("Mirror: what a standby gave up is in its leader's line before it is in sync") {
  Mirror mirror;
  const std::string grown(32, 'a'), given_up(32, 'b');
  mirror.leader.server->set_line({kTerm, grown});
  mirror.standby = std::make_unique<Standby>(mirror.io, mirror.leader.port());
  mirror.standby->given_up = {given_up};
  mirror.run_until_in_sync();
  const TermLine line{kTerm, given_up, grown};
  CHECK(mirror.standby->in_sync[0].line == line);
  CHECK(decode_term_row(mirror.shelf->rows().at(kTermRow))->line == line);
  CHECK(mirror.leader.met[0].given_up == TermLine{given_up});
}

TEST_CASE("Mirror: batches go on while the snapshot is made, and none is missing in it") {
  const test::LogLines lines;
  boost::asio::io_context io{1};
  test::TempDirectory directory;
  auto file = std::make_unique<JournalFile>(directory.path("leader"), Durability::kProcess);
  file->load();
  Batch first;
  for (int i = 0; i < 2000; ++i) {
    first.push_back({"jobs/" + std::to_string(i) + "/state", std::string(2000, 'a')});
  }
  first.push_back({"jobs/5000/state", "to be erased"});
  file->commit(first);
  LeaderOptions options;
  options.page_bytes = 20'000;
  Leader leader(io, std::move(file), options);
  Standby standby(io, leader.port());
  std::mt19937 random(3);
  Rows expected;
  for (const auto& row : first) expected[row.key] = *row.content;
  int number = 0;
  REQUIRE(run_until(io, [&] {
    if (number < 400 && static_cast<int>(leader.said.size()) == number) {
      const std::string at = std::to_string(random() % 2500);
      Batch batch{{"jobs/" + at + "/state", "new " + std::to_string(number)},
                  {"jobs/" + std::to_string(random() % 2500) + "/state", std::nullopt},
                  {"last", std::to_string(number)}};
      journal::apply_batch(batch, expected);
      leader.commit(std::move(batch), ++number);
    }
    return number == 400 && leader.has_said(400) && standby.client->is_in_sync();
  }));
  CHECK(Standby::job_rows(standby.stop()) == expected);
}

TEST_CASE("Mirror: rows that are larger than what may be under way at once") {
  Mirror mirror;
  // Both leave in many parts, and no transfer fits into the window.
  const std::string big(kMirrorWindowBytes + kMirrorWindowBytes / 4 + 7, 'b');
  const std::string bigger(2 * kMirrorWindowBytes, 'c');
  mirror.shelf->commit({{"stores/1/1/base/0", big}, {"a", "1"}});
  mirror.attach();
  mirror.run_until_in_sync();
  mirror.commit({{"stores/1/1/base/0", bigger}, {"jobs/1/state", big}}, 1);
  const MirroredJournal kept = mirror.standby->stop();
  CHECK((Standby::job_rows(kept) == mirror.shelf->job_rows()));
}

TEST_CASE(
    "Mirror: without an acknowledgement nothing is in the leader's file, and nothing is said") {
  Mirror mirror;
  FrameRelay relay(mirror.io, mirror.leader.port());
  mirror.standby = std::make_unique<Standby>(mirror.io, relay.port());
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  relay.hold_answers(true);
  mirror.leader.commit({{"jobs/1/state", "2"}}, 2);
  mirror.leader.commit({}, 3);
  // The standby has it: its file is read beside it.
  const auto standby_has = [&] {
    test::TempDirectory copy;
    for (const char* part : {"journal.db", "journal.db-wal"}) {
      std::error_code none;
      std::filesystem::copy_file(mirror.standby->directory.path("state") + "/" + part,
                                 copy.path(part), none);
    }
    return JournalFile(copy.path(), Durability::kProcess).load().rows["jobs/1/state"] == "2";
  };
  REQUIRE(run_until(mirror.io, standby_has));
  CHECK(mirror.shelf->rows().at("jobs/1/state") == "1");
  CHECK_FALSE(mirror.leader.has_said(2));
  relay.hold_answers(false);
  REQUIRE(run_until(mirror.io, [&] { return mirror.leader.has_said(3); }));
  CHECK(mirror.shelf->rows().at("jobs/1/state") == "2");
}

TEST_CASE(
    "Mirror: a standby that does not acknowledge in time is lost, and its leader deposed once") {
  LeaderOptions options;
  options.ack = 500ms;
  Mirror mirror(options);
  FrameRelay relay(mirror.io, mirror.leader.port());
  mirror.standby = std::make_unique<Standby>(mirror.io, relay.port());
  mirror.run_until_in_sync();
  mirror.standby->forget_the_past();  // a slow machine may have lost it on the way there
  relay.hold_answers(true);
  mirror.leader.commit({{"jobs/1/state", "1"}}, 1);
  REQUIRE(run_until(mirror.io, [&] { return !mirror.leader.deposed.empty(); }));
  CHECK_THAT(mirror.leader.deposed[0], StartsWith("the standby b:29400 is lost: waited ") &&
                                           Contains(" ms for it to acknowledge transfer"));
  relay.hold_answers(false);
  mirror.leader.commit({}, 2);
  REQUIRE(run_until(mirror.io, [&] { return !mirror.standby->lost.empty(); }));
  CHECK(mirror.standby->lost[0].was_in_sync);
  CHECK_FALSE(mirror.standby->lost[0].is_silence);
  // Who comes meanwhile is told to come again.
  REQUIRE(run_until(mirror.io, [&] { return mirror.standby->lost.size() > 1; }));
  CHECK(mirror.standby->lost[1].why ==
        "takes this standby not in: a:29400 begins another term; come again");
  CHECK_FALSE(mirror.standby->lost[1].was_in_sync);
  CHECK(mirror.leader.deposed.size() == 1);
  CHECK(mirror.leader.said.empty());
  CHECK_FALSE(mirror.shelf->rows().contains("jobs/1/state"));
}

TEST_CASE("Mirror: a silent standby is noticed without a batch, a silent leader by its standby") {
  LeaderOptions options;
  options.silence = 3s;  // longer than a machine stands still
  Mirror mirror(options);
  FrameRelay relay(mirror.io, mirror.leader.port());
  mirror.standby = std::make_unique<Standby>(mirror.io, relay.port(), "b:29400", 3s);
  mirror.standby->stops_when_lost = true;
  mirror.run_until_in_sync();
  relay.limit(0, FrameRelay::Then::kHold);
  REQUIRE(run_until(
      mirror.io, [&] { return !mirror.leader.deposed.empty() && !mirror.standby->lost.empty(); }));
  CHECK(mirror.leader.standbys_lost[0].was_synced);
  CHECK(mirror.standby->lost[0].was_in_sync);
}

TEST_CASE("Mirror: a second standby is refused by a line that names the first") {
  Mirror mirror;
  mirror.attach();
  mirror.run_until_in_sync();
  Standby second(mirror.io, mirror.leader.port(), "c:29400");
  REQUIRE(run_until(mirror.io, [&] { return !second.lost.empty(); }));
  CHECK(second.lost[0].why == "takes this standby not in: b:29400 mirrors a:29400 already");
  CHECK(second.copying.empty());
  CHECK(mirror.lines.await("refused the standby c:29400") ==
        "refused the standby c:29400: b:29400 mirrors a:29400 already");
}

TEST_CASE("Mirror: a standby that comes again gets a new snapshot in place of all that it has") {
  Mirror mirror;
  mirror.shelf->commit({{"jobs/1/state", "1"}, {"jobs/2/state", "1"}});
  auto relay = std::make_unique<FrameRelay>(mirror.io, mirror.leader.port());
  relay->limit(6, FrameRelay::Then::kCut);  // before it is in sync
  mirror.standby = std::make_unique<Standby>(mirror.io, relay->port());
  REQUIRE(run_until(mirror.io, [&] { return relay->is_over(); }));
  mirror.commit({{"jobs/2/state", std::nullopt}, {"jobs/3/state", "1"}}, 1);
  mirror.run_until_in_sync();
  CHECK(mirror.leader.deposed.empty());
  const MirroredJournal kept = mirror.standby->stop();
  CHECK(Standby::job_rows(kept) == Rows{{"jobs/1/state", "1"}, {"jobs/3/state", "1"}});
  CHECK(kept.before.empty());
}

TEST_CASE("Mirror: what the last batch replaced is known, also after a restart of the standby") {
  Mirror mirror;
  mirror.attach();
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}, {"stores/1/1/log/0", "x"}}, 1);
  mirror.commit({{"jobs/1/state", "2"}, {"jobs/1/nodes/1", "n"}, {"stores/1/1/log/1", "y"}}, 2);
  for (bool restarted : {false, true}) {
    if (restarted) mirror.standby->start(1);  // nobody is there
    MirroredJournal kept = mirror.standby->stop();
    REQUIRE(kept.before.size() == 2);
    CHECK((kept.before[0].key == "jobs/1/nodes/1" && !kept.before[0].content));
    CHECK((kept.before[1].key == "jobs/1/state" && kept.before[1].content == "1"));
    CHECK(Standby::synced_of(kept) == kSynced);
  }
}

TEST_CASE("Mirror: after stop() nothing is taken, and the leader is not told of any of it") {
  Mirror mirror;
  mirror.attach();
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  mirror.leader.commit({{"jobs/1/state", "2"}}, 2);
  const MirroredJournal kept = mirror.standby->stop();
  REQUIRE(run_until(mirror.io, [&] { return !mirror.leader.deposed.empty(); }));
  CHECK_FALSE(mirror.leader.has_said(2));
  CHECK(mirror.shelf->rows().at("jobs/1/state") == "1");
  CHECK(mirror.standby->lost.empty());
}

TEST_CASE("Mirror: a leader whose disk is full tells nobody, and its standby that all is its own") {
  Mirror mirror;
  mirror.attach();
  mirror.standby->stops_when_lost = true;
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  mirror.shelf->set_fails(true);
  mirror.leader.commit({{"jobs/1/state", "2"}}, 2);
  REQUIRE(run_until(mirror.io, [&] {
    return !mirror.leader.deposed.empty() && mirror.standby->kept.has_value();
  }));
  CHECK_FALSE(mirror.leader.has_said(2));
  CHECK(mirror.leader.deposed ==
        std::vector<std::string>{"this ddprund's own journal fails: can't write the shelf: it is "
                                 "full; the standby b:29400 goes on"});
  REQUIRE(mirror.leader.standbys_lost.size() == 1);
  CHECK(mirror.leader.standbys_lost[0].was_synced);
  CHECK(mirror.leader.standbys_lost[0].own_disk);
  REQUIRE(mirror.standby->lost.size() == 1);
  CHECK(mirror.standby->lost[0].is_yours);
  CHECK(mirror.standby->lost[0].was_in_sync);
  const MirroredJournal& kept = *mirror.standby->kept;
  CHECK(Standby::synced_of(kept) == kSynced);
  // The batch of which it can't know whether anybody was told.
  CHECK(Standby::job_rows(kept) == Rows{{"jobs/1/state", "2"}});
  REQUIRE(kept.before.size() == 1);
  CHECK(kept.before[0].content == "1");
}

TEST_CASE("Mirror: a leader whose disk hangs says so itself, and its standby goes on") {
  LeaderOptions options;
  options.file = 100ms;
  Mirror mirror(options);
  mirror.attach();
  mirror.standby->stops_when_lost = true;
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  mirror.shelf->set_hangs(true);
  mirror.leader.commit({{"jobs/1/state", "2"}}, 2);
  REQUIRE(run_until(mirror.io, [&] { return mirror.standby->kept.has_value(); }));
  CHECK(mirror.standby->lost[0].is_yours);
  REQUIRE(mirror.leader.standbys_lost.size() == 1);
  CHECK(mirror.leader.standbys_lost[0].was_synced);
  CHECK(mirror.leader.standbys_lost[0].own_disk);
  CHECK_THAT(mirror.leader.standbys_lost[0].why, Contains("the disk has not answered for 100 ms"));
  CHECK(mirror.leader.deposed.empty());  // its thread hangs
  // What the disk takes in the end was told to nobody all the same.
  mirror.shelf->set_hangs(false);
  REQUIRE(run_until(mirror.io, [&] { return !mirror.leader.deposed.empty(); }));
  CHECK_FALSE(mirror.leader.has_said(2));
}

TEST_CASE("Mirror: a leader that ends hands its jobs over, with all that it told anybody") {
  Mirror mirror;
  mirror.attach();
  mirror.standby->stops_when_lost = true;
  mirror.run_until_in_sync();
  mirror.leader.commit({{"jobs/1/state", "1"}}, 1);
  mirror.leader.hand_over();
  CHECK(mirror.leader.has_said(1));
  CHECK(mirror.leader.standbys_lost.empty());
  REQUIRE(run_until(mirror.io, [&] { return mirror.standby->kept.has_value(); }));
  REQUIRE(mirror.standby->lost.size() == 1);
  CHECK(mirror.standby->lost[0].is_yours);
  CHECK(mirror.standby->lost[0].was_in_sync);
  CHECK(Standby::synced_of(*mirror.standby->kept) == kSynced);
  CHECK(Standby::job_rows(*mirror.standby->kept) == mirror.shelf->job_rows());
}

TEST_CASE("Mirror: a leader that ends alone, or beside who is not in sync, hands nothing over") {
  Mirror mirror;
  std::unique_ptr<FrameRelay> relay;
  if (GENERATE(false, true)) {
    relay = std::make_unique<FrameRelay>(mirror.io, mirror.leader.port());
    relay->limit(7, FrameRelay::Then::kHold);  // before it is in sync
    mirror.standby = std::make_unique<Standby>(mirror.io, relay->port());
    REQUIRE(run_until(mirror.io, [&] { return relay->is_over(); }));
  }
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  mirror.leader.hand_over();
  CHECK(mirror.shelf->rows().at("jobs/1/state") == "1");
  if (!mirror.standby) return;
  relay->release();
  REQUIRE(run_until(mirror.io, [&] { return !mirror.standby->lost.empty(); }));
  CHECK_FALSE(mirror.standby->lost[0].was_in_sync);
  CHECK_FALSE(mirror.standby->lost[0].is_yours);
}

TEST_CASE("Mirror: a standby that leaves has a copy, and its leader goes on alone") {
  Mirror mirror;
  mirror.attach();
  mirror.run_until_in_sync();
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  mirror.leader.commit({{"jobs/1/state", "2"}}, 2);
  mirror.standby->leave();
  REQUIRE(run_until(mirror.io, [&] { return !mirror.leader.standbys_lost.empty(); }));
  CHECK_FALSE(mirror.leader.standbys_lost[0].was_synced);
  mirror.commit({{"jobs/1/state", "3"}}, 3);
  CHECK_FALSE(mirror.leader.journal->is_shared());
  CHECK(mirror.leader.deposed.empty());
  CHECK_FALSE(mirror.shelf->rows().contains(kStandbyRow));
  MirroredJournal kept = mirror.standby->stop();
  CHECK_FALSE(Standby::synced_of(kept));
  const LeaderRows rows = read_leader_rows(kept.content.rows);
  CHECK(rows.kind == RowsKind::kCopy);
  CHECK(rows.leader == "a:29400");
}

TEST_CASE(
    "Mirror: a leader whose disk fails stays alone, its jobs go on, and a standby comes later") {
  Mirror mirror;
  mirror.shelf->set_fails(true);
  mirror.commit({{"jobs/1/state", "1"}}, 1);
  REQUIRE(mirror.leader.journal->trouble());
  mirror.attach();
  REQUIRE(run_until(mirror.io, [&] { return !mirror.standby->lost.empty(); }));
  CHECK(mirror.standby->lost[0].why ==
        "takes this standby not in: this ddprund's own journal can't be written: can't write the "
        "shelf: it is full");
  CHECK(mirror.leader.standbys_lost.empty());
  mirror.commit({{"jobs/1/state", "2"}}, 2);
  mirror.shelf->set_fails(false);
  mirror.run_until_in_sync();
  CHECK(mirror.leader.deposed.empty());
  CHECK(Standby::job_rows(mirror.standby->stop()) == Rows{{"jobs/1/state", "2"}});
}

TEST_CASE("Mirror: a standby whose disk is full says so, is not in sync, and comes again") {
  Mirror mirror;
  mirror.attach();
  mirror.run_until_in_sync();
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  mirror.leader.commit({{"jobs/1/state", "1"}}, 1);
  const bool is_lost = run_until(mirror.io, [&] { return !mirror.standby->lost.empty(); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  REQUIRE(is_lost);
  CHECK_FALSE(mirror.standby->lost[0].was_in_sync);
  REQUIRE(!mirror.standby->troubles.empty());
  CHECK_THAT(mirror.standby->troubles[0], StartsWith("can't write "));
  REQUIRE(run_until(mirror.io, [&] { return !mirror.leader.deposed.empty(); }));
}

// ---- who does not keep to the protocol ----

// A peer of a leader that says what a test tells it.
class Stranger {
 public:
  Stranger(boost::asio::io_context& io, std::uint16_t port)
      : connector_(io, {"127.0.0.1", port}, {}, kMirrorPath) {
    membership::LinkConnector::Handlers handlers;
    handlers.opened = [this](std::shared_ptr<membership::FrameStream> stream) {
      frames = std::move(stream);
      membership::FrameStream::Handlers its;
      its.frame = [this](std::string_view text) { texts.emplace_back(text); };
      its.binary = [this](std::string_view bytes) { num_bytes += bytes.size(); };
      its.ended = [this](const std::string&) { is_over = true; };
      frames->start(std::move(its));
    };
    handlers.failed = [this](const membership::ConnectFailure&) { is_over = true; };
    connector_.attempt(Clock::now() + 10s, std::move(handlers));
    REQUIRE(run_until(io, [this] { return frames || is_over; }));
  }
  ~Stranger() {
    if (frames) frames->close();
  }

  std::shared_ptr<membership::FrameStream> frames;  // second owner: its operations
  std::vector<std::string> texts;
  std::size_t num_bytes = 0;
  bool is_over = false;

 private:
  membership::LinkConnector connector_;
};

TEST_CASE("Mirror: who speaks another version is refused by a line that names both") {
  Mirror mirror;
  Stranger stranger(mirror.io, mirror.leader.port());
  stranger.frames->send(R"({"type":"hello","version":9,"name":"new\n:1","rows":7})");
  REQUIRE(run_until(mirror.io, [&] { return stranger.is_over; }));
  REQUIRE(stranger.texts.size() == 1);
  CHECK_THAT(stranger.texts[0], Contains("it speaks version 9 of the mirror's protocol, and "
                                         "a:29400 version 1: install the same ddprund on both"));
  CHECK_FALSE(mirror.lines.await("refused new\\n:1: it speaks version 9").empty());
}

TEST_CASE("Mirror: a standby comes in once one that was never in sync has gone") {
  Mirror mirror;
  auto first = std::make_unique<Stranger>(mirror.io, mirror.leader.port());
  first->frames->send(kHello);
  first->frames->send(kMirror);
  REQUIRE(run_until(mirror.io, [&] { return first->num_bytes > 0; }));
  mirror.attach();
  REQUIRE(run_until(mirror.io, [&] { return !mirror.standby->lost.empty(); }));
  CHECK_THAT(mirror.standby->lost[0].why, Contains("x mirrors a:29400 already"));
  first.reset();
  mirror.run_until_in_sync();
  CHECK(mirror.leader.deposed.empty());
}

TEST_CASE("Mirror: nonsense in place of a hello gets nothing") {
  const std::string said = GENERATE(as<std::string>(), "x", kMirror, R"({"type":"ack","number":1})",
                                    std::string(5000, 'x'));
  Mirror mirror;
  mirror.shelf->commit({{"jobs/1/job", "{}"}});
  Stranger stranger(mirror.io, mirror.leader.port());
  stranger.frames->send(said);
  REQUIRE(run_until(mirror.io, [&] { return stranger.is_over; }));
  CHECK(stranger.texts.empty());
  CHECK(stranger.num_bytes == 0);
  CHECK_FALSE(
      mirror.lines.await("closed the connection of a ddprund that has not said who it is").empty());
}

TEST_CASE("Mirror: a standby that acknowledges what it was not sent is no standby") {
  const std::string said = GENERATE(as<std::string>(), R"({"type":"ack","number":2})",
                                    R"({"type":"got","bytes":99999})", kHello, kMirror, "{}");
  Mirror mirror;
  mirror.shelf->commit({{"jobs/1/job", "{}"}});
  Stranger stranger(mirror.io, mirror.leader.port());
  stranger.frames->send(kHello);
  stranger.frames->send(kMirror);
  stranger.frames->send(said);
  REQUIRE(run_until(mirror.io, [&] { return stranger.is_over; }));
  REQUIRE(mirror.leader.standbys_lost.size() == 1);
  CHECK_FALSE(mirror.leader.standbys_lost[0].was_synced);
  CHECK(mirror.leader.deposed.empty());
}

TEST_CASE("Mirror: the time of day of another machine's clock is kept with its rows") {
  test::TempDirectory directory;
  {
    JournalFile file(directory.path(), Durability::kProcess);
    file.load();
    journal::ClockStamp clock;
    clock.boot = "another machine's";
    clock.monotonic_ns = Clock::now().time_since_epoch().count() - 3'000'000'000;
    file.commit({{"a", "1"}}, clock);
    const auto shift = file.content().clock_shift;
    CHECK((shift >= 3s && shift < 30s));
  }
  const auto shift = JournalFile(directory.path(), Durability::kProcess).load().clock_shift;
  CHECK((shift >= 3s && shift < 30s));
}

}  // namespace
}  // namespace ddprun::ha::testing
