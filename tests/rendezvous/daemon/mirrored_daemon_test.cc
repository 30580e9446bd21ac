// SPDX-License-Identifier: Apache-2.0
// A daemon whose journal a standby mirrors: who is let in, and what it gets.
#include <memory>
#include <string>
#include <vector>

#include "common/log.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/ha/mirror_client.h"
#include "rendezvous/ha/mirror_door.h"
#include "rendezvous/ha/mirror_server.h"
#include "rendezvous/ha/peer_caller.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/rendezvous/daemon/test_certificates.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"
#include "tests/support/secret_file.h"
#include "tests/support/temp_directory.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ha::Away;
using journal::Durability;
using journal::JournalFile;
using journal::Rows;
using test::Contains;
using test::secret_of;

constexpr char kToken[] = "a token of some length";
constexpr char kTerm[] = "0123456789abcdef0123456789abcdef";

std::unique_ptr<JournalFile> open_journal(const std::string& directory) {
  auto file = std::make_unique<JournalFile>(directory, Durability::kProcess);
  file->load();
  return file;
}

Rows without_own_rows(Rows rows) {
  std::erase_if(rows, [](const auto& row) { return ha::is_leader_row(row.first); });
  return rows;
}

struct MirroredDaemon {
  explicit MirroredDaemon(DaemonOptions options = {}) {
    set_log_level(LogLevel::kInfo);
    ha::MirrorServerOptions its;
    its.name = "a:29400";
    its.term = {kTerm, 1};
    its.line = {kTerm};
    its.silence_limit = 10s;
    its.writer.ack_limit = its.writer.last_step_limit = 10s;
    const auto server = std::make_shared<ha::MirrorServer>(io, its, ha::MirrorServer::Handlers());
    ha::MirrorDoorOptions meeting;
    meeting.state = [] {
      ha::PairState state;
      state.name = "a:29400";
      state.leads = true;
      state.rows = ha::RowsKind::kLeads;
      state.term = {kTerm, 1};
      state.line = {kTerm};
      return state;
    };
    const auto door = std::make_shared<ha::MirrorDoor>(io, std::move(meeting));
    door->set_server(server);
    options.peer_calls = [door](const auto& frames, const std::shared_ptr<void>& place) {
      door->take(frames, place);
    };
    KeptJobs kept(server, open_journal(directory.path("leader")), {},
                  [this](const std::string& why) { deposed.push_back(why); });
    daemon = std::make_unique<Daemon>(io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}),
                                      options, std::move(kept));
  }

  void mirror(const membership::LinkSecurity& security = {}) {
    mirror_at(daemon->port(), security);
  }

  // A standby that calls who is there, and mirrors it where it leads.
  void mirror_at(std::uint16_t port, const membership::LinkSecurity& security = {}) {
    ha::MirrorClientOptions mirroring;
    mirroring.lease = 10s;
    standby = std::make_unique<ha::MirrorClient>(io, open_journal(directory.path("standby")),
                                                 mirroring, ha::MirrorClient::Handlers());
    ha::PeerCallerOptions options;
    options.peer = {"127.0.0.1", port};
    options.security = security;
    options.state = [] {
      ha::PairState state;
      state.name = "b:29400";
      return state;
    };
    ha::PeerCaller::Handlers handlers;
    handlers.met = [this](const ha::PairState& theirs, ha::Call call) {
      if (theirs.leads && standby->can_mirror()) standby->mirror(call.mirror(), theirs.name);
    };
    handlers.away = [this](const Away& away) { aways.push_back(away); };
    caller = std::make_unique<ha::PeerCaller>(io, std::move(options), std::move(handlers));
  }

  bool is_in_sync() {
    return run_until(io, [&] { return standby->is_in_sync(); });
  }

  std::string trouble() {
    REQUIRE(run_until(io, [&] { return !aways.empty(); }));
    CHECK_FALSE(standby->is_in_sync());
    CHECK(aways[0].kind == Away::Kind::kRefused);
    return aways[0].what;
  }

  const test::LogLines lines;
  test::TempDirectory directory;
  boost::asio::io_context io{1};
  std::vector<std::string> deposed;
  std::vector<Away> aways;
  std::unique_ptr<Daemon> daemon;
  std::unique_ptr<ha::MirrorClient> standby;
  std::unique_ptr<ha::PeerCaller> caller;
};

DaemonOptions with_token(const std::string& token = kToken) {
  DaemonOptions options;
  options.token = secret_of(token);
  return options;
}

TEST_CASE("Mirrored daemon: what it decides is with its standby, which is told to nobody before") {
  MirroredDaemon mirrored;
  TestAgent first(mirrored.io, mirrored.daemon->port(), make_join("x", 2));
  mirrored.mirror();
  REQUIRE(mirrored.is_in_sync());
  TestAgent second(mirrored.io, mirrored.daemon->port(), make_join("y", 2));
  REQUIRE(run_until(mirrored.io, [&] { return !first.rounds.empty() && !second.rounds.empty(); }));
  CHECK_THAT(mirrored.daemon->status_json(), Contains("\"kept\":true"));
  std::optional<ha::MirroredJournal> kept;
  mirrored.standby->stop([&](ha::MirroredJournal its) { kept = std::move(its); });
  REQUIRE(run_until(mirrored.io, [&] { return kept.has_value(); }));
  // Whose standby has gone decides nothing any more.
  REQUIRE(run_until(mirrored.io, [&] { return !mirrored.deposed.empty(); }));
  CHECK_THAT(mirrored.deposed[0], Contains("the standby b:29400 is lost"));
  first.kill(), second.kill();
  mirrored.daemon.reset();
  CHECK(mirrored.deposed.size() == 1);

  const Rows leaders =
      JournalFile(mirrored.directory.path("leader"), Durability::kProcess).load().rows;
  CHECK(leaders.at("leader/standby") == R"({"name":"b:29400"})");
  CHECK(without_own_rows(leaders).size() > 4);
  Rows rows = without_own_rows(kept->content.rows);
  // The agents' last words may be with the standby alone.
  if (rows != without_own_rows(leaders)) journal::apply_batch(kept->before, rows);
  CHECK(rows == without_own_rows(leaders));
}

TEST_CASE("Mirrored daemon: a standby with its token is taken in, others are not") {
  MirroredDaemon mirrored(with_token());
  SECTION("the same token") {
    mirrored.mirror({secret_of(kToken), nullptr});
    CHECK(mirrored.is_in_sync());
  }
  SECTION("another token") {
    mirrored.mirror({secret_of("another token of ours"), nullptr});
    CHECK(mirrored.trouble() ==
          "refused this node: its token is another one (compare the --token-file of both)");
    CHECK_FALSE(mirrored.lines.await("closed the connection of ddprund 127.0.0.1:").empty());
  }
  SECTION("no token") {
    mirrored.mirror();
    CHECK_THAT(mirrored.trouble(), Contains("wants a token"));
  }
}

TEST_CASE("Mirrored daemon: a standby refuses a leader that has not its token") {
  MirroredDaemon mirrored;
  mirrored.mirror({secret_of(kToken), nullptr});
  CHECK_THAT(mirrored.trouble(), Contains("has no token"));
}

TEST_CASE("Mirrored daemon: with TLS a standby speaks it, and knows the authority") {
  const Certificates certificates;
  DaemonOptions options = with_token();
  options.tls = certificates.server();
  MirroredDaemon mirrored(options);
  SECTION("it does") {
    mirrored.mirror({secret_of(kToken), certificates.client()});
    CHECK(mirrored.is_in_sync());
  }
  SECTION("it has another authority") {
    const Certificates others;
    mirrored.mirror({secret_of(kToken), others.client()});
    CHECK_THAT(mirrored.trouble(), Contains("can't be trusted"));
  }
  SECTION("it speaks none") {
    mirrored.mirror({secret_of(kToken), nullptr});
    CHECK_THAT(mirrored.trouble(), Contains("wants TLS"));
  }
}

TEST_CASE("Mirrored daemon: one that stands by, or keeps nothing, is told apart") {
  MirroredDaemon mirrored;
  SECTION("stands by") {
    DaemonOptions options;
    options.stands_by = true;
    Daemon other(mirrored.io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
    other.stand_by("c:29400");
    mirrored.mirror_at(other.port());
    CHECK(mirrored.trouble() == "stands by, and is not one of a pair");
  }
  SECTION("keeps nothing") {
    Daemon other(mirrored.io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), {});
    mirrored.mirror_at(other.port());
    CHECK(mirrored.trouble() ==
          "is not one of a pair, or no ddprund of this version: it answered HTTP 404");
  }
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
