// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/ha/mirror_pair.h"

namespace ddprun::ha::testing {

Leader::Leader(boost::asio::io_context& io, std::unique_ptr<journal::RowFile> file,
               const LeaderOptions& options)
    : io_(io) {
  MirrorServerOptions its;
  its.name = options.name;
  its.term = {kTerm, 4};
  its.line = {kTerm};
  its.silence_limit = options.silence;
  its.writer.ack_limit = options.ack;
  its.writer.last_step_limit = 10s;
  its.writer.page_bytes = options.page_bytes;
  its.writer.catch_up_limit = options.catch_up;
  its.file_limit = options.file;
  MirrorServer::Handlers handlers;
  handlers.mirrored = [this](const std::string& name) { mirrored_by.push_back(name); };
  handlers.lost = [this](const LostStandby& lost) { standbys_lost.push_back(lost); };
  server = std::make_shared<MirrorServer>(io, its, std::move(handlers));
  journal::JournalOptions keeping;
  keeping.deposed = [this](const std::string& why) { deposed.push_back(why); };
  keeping.first_retry = 5ms;
  keeping.last_retry = 20ms;
  journal = std::make_unique<journal::Journal>(
      server->make_writer(std::move(file)),
      [&io](std::function<void()> call) { boost::asio::post(io, std::move(call)); }, keeping);
  server->start(*journal);
  MirrorDoorOptions meeting;
  meeting.state = [name = options.name] {
    PairState state;
    state.name = name;
    state.is_first = state.leads = true;
    state.rows = RowsKind::kLeads;
    state.term = {kTerm, 4};
    state.line = {kTerm};
    return state;
  };
  meeting.met = [this](const PairState& theirs) { met.push_back(theirs); };
  door = std::make_shared<MirrorDoor>(io, std::move(meeting));
  door->set_server(server);
  port_ = std::make_unique<UpgradingPort>(
      io, [door = door](const UpgradingPort::Frames& frames) { door->take(frames, nullptr); });
}

void Leader::hand_over() {
  bool is_drained = false, is_done = false;
  journal->commit({}, [&] { is_drained = true; });
  REQUIRE(run_until(io_, [&] { return is_drained; }));
  server->hand_over([&] { is_done = true; });
  REQUIRE(run_until(io_, [&] { return is_done; }));
}

void Standby::start(std::uint16_t port) {
  auto file = std::make_unique<journal::JournalFile>(directory.path("state"),
                                                     journal::Durability::kProcess);
  file->load();
  MirrorClientOptions options;
  options.lease = lease_;
  options.ping_every = 20ms;
  options.first_retry = options.last_retry = 20ms;
  MirrorClient::Handlers handlers;
  handlers.copying = [this](const std::string& leader) { copying.push_back(leader); };
  handlers.in_sync = [this](const SyncedWith& synced) { in_sync.push_back(synced); };
  handlers.lost = [this](const LostLeader& its) {
    lost.push_back(its);
    stops_when_lost ? stop_later() : caller->resume();
  };
  handlers.trouble = [this](const std::string& what) { troubles.push_back(what); };
  client = std::make_unique<MirrorClient>(io_, std::move(file), options, std::move(handlers));
  call(port);
}

MirroredJournal Standby::stop() {
  stop_later();
  REQUIRE(run_until(io_, [this] { return kept.has_value(); }));
  MirroredJournal its = std::move(*kept);
  kept.reset();
  client.reset();
  return its;
}

void Standby::stop_later() {
  caller.reset();
  client->stop([this](MirroredJournal its) { kept = std::move(its); });
}

void Standby::leave() {
  bool is_done = false;
  caller.reset();
  client->leave([&] { is_done = true; });
  REQUIRE(run_until(io_, [&] { return is_done; }));
}

void Standby::call(std::uint16_t port) {
  PeerCallerOptions options;
  options.peer = {"127.0.0.1", port};
  options.last_pause = 20ms;
  options.attempt_limit = 10s;
  options.answer_limit = lease_;
  options.state = [this] {
    PairState state;
    state.name = name_;
    state.given_up = given_up;
    state.rows = RowsKind::kCopy;
    return state;
  };
  PeerCaller::Handlers handlers;
  handlers.met = [this](const PairState& theirs, Call call) {
    if (theirs.leads && client->can_mirror()) client->mirror(call.mirror(), theirs.name);
  };
  handlers.away = [this](const Away& away) { aways.push_back(away); };
  caller = std::make_unique<PeerCaller>(io_, std::move(options), std::move(handlers));
}

}  // namespace ddprun::ha::testing
