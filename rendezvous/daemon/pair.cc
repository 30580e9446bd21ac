// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/pair.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "common/boot_id.h"
#include "common/error.h"
#include "common/log.h"
#include "common/random_id.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/membership/job_rows.h"

namespace ddprun::rendezvous {

using ha::Decision;
using ha::PairMove;
using ha::PairState;
using ha::RowsKind;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kStandbyPause{500}, kLeaderPause{2'000};  // between calls, at most
constexpr milliseconds kBeginLimit{2'000};  // for the commit of a term; then the other one may
constexpr milliseconds kReopenAfter{1'000};
constexpr milliseconds kDistrust{10'000};  // after its own disk has failed as a leader's
// The rows may lack their end, after a loss of power: for so long the other one, whose rows don't,
// had better go on with the jobs. By then no node waits for them any more.
constexpr milliseconds kRowsMayLackEnd{100'000};
constexpr milliseconds kStopLimit{2'000}, kLastWord{100};

std::uint64_t jobs_not_over(const journal::Rows& rows) {
  std::uint64_t number = 0;
  for (const auto& [job, its_rows] : membership::rows_by_job(rows)) {
    try {
      if (!membership::read_job(its_rows, {}).verdict) ++number;
    } catch (const std::exception&) {
      ++number;  // it may be one
    }
  }
  return number;
}

void after(boost::asio::steady_timer& timer, milliseconds time, std::function<void()> call) {
  timer.expires_after(time);
  timer.async_wait([call = std::move(call)](boost::system::error_code error) {
    if (!error) call();
  });
}

}  // namespace

// Second owners: what is posted, and the thread that keeps a term.
struct Pair::Life {
  std::mutex mutex;
  boost::asio::io_context* io = nullptr;  // null: the Pair has gone; guarded by mutex for others
};

// A term that is being kept, on a thread of its own: the disk may hang.
struct Pair::Beginning {
  File file;
  journal::Content content;
  ha::TermPlan plan;
  journal::Batch batch;
  std::string trouble;
};

Pair::Pair(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
           PairOptions pair)
    : io_(io),
      options_(std::move(pair)),
      life_(std::make_shared<Life>()),
      alone_timer_(io),
      disk_timer_(io),
      begin_timer_(io),
      stop_timer_(io) {
  life_->io = &io;
  auto file = std::make_unique<journal::JournalFile>(options_.directory, options_.durability);
  journal::Content content = file->load();
  for (const std::string& loss : content.losses) log_warning(loss);
  know(content);
  if (rows_.kind == RowsKind::kLeads && rows_.term.id.empty()) {  // it was alone until now
    const std::string id = random_id();
    const journal::Batch begun = ha::term_begun({{id, 1}, {id}}, content.rows);
    file->commit(begun);
    journal::apply_batch(begun, content.rows);
    rows_ = ha::read_leader_rows(content.rows);
  }
  const bool others_have_all = rows_.kind == RowsKind::kSynced || rows_.has_standby;
  if (content.may_lack_end && others_have_all) {
    log_warning(
        "this machine has ended since its last decisions, which may not be on its disk: the "
        "other one had better go on with the jobs (--durability=disk keeps all)");
    distrust_disk(kRowsMayLackEnd);
  }
  ha::MirrorDoorOptions door;
  door.state = [this] { return state(); };
  door.met = [this](const PairState& theirs) { heard(theirs); };
  door_ = std::make_shared<ha::MirrorDoor>(io, std::move(door));
  options.stands_by = true;
  options.peer_calls = [door = door_](const auto& frames, const std::shared_ptr<void>& place) {
    door->take(frames, place);
  };
  options.peer_status = [this] { return peer_status(); };
  daemon_ = std::make_unique<Daemon>(io, std::move(listeners), std::move(options));
  ha::PeerCallerOptions calls;
  calls.peer = options_.peer;
  calls.security = options_.security;
  calls.state = [this] { return state(); };
  ha::PeerCaller::Handlers handlers;
  handlers.met = [this](const PairState& theirs, ha::Call call) { met(theirs, std::move(call)); };
  handlers.away = [this](const ha::Away& its) { away(its); };
  caller_ = std::make_unique<ha::PeerCaller>(io, std::move(calls), std::move(handlers));
  stand_by(std::move(file));
}

Pair::~Pair() {
  {
    const std::lock_guard lock(life_->mutex);
    life_->io = nullptr;
  }
  caller_.reset();
  client_.reset();
  daemon_.reset();
  server_.reset();
  door_.reset();
}

std::function<void()> Pair::while_alive(std::function<void()> call) {
  return [life = life_, call = std::move(call)] {
    if (life->io != nullptr) call();  // written by this thread alone
  };
}

void Pair::post(std::function<void()> call) {
  boost::asio::post(io_, while_alive(std::move(call)));
}

// ---- what it is, and what the other one is told ----

void Pair::know(const journal::Content& content) {
  rows_ = ha::read_leader_rows(content.rows);
  num_jobs_ = jobs_not_over(content.rows);
}

PairState Pair::state() const {
  PairState state;
  state.name = options_.name;
  state.is_first = options_.is_first;
  state.leads = role_ == Role::kLeads;
  state.given_up = rows_.given_up;
  state.rows = rows_.kind;
  if (!state.leads && state.rows == RowsKind::kLeads && has_led_) state.rows = RowsKind::kSynced;
  if (!state.leads && distrusts_disk_) state.rows = RowsKind::kCopy;
  if (state.rows == RowsKind::kLeads || state.rows == RowsKind::kSynced) {
    state.term = rows_.term;
    state.line = rows_.line;
  }
  if (!state.leads) {
    state.num_jobs = num_jobs_;
    return state;
  }
  state.num_held = daemon_->num_held();
  state.num_jobs = daemon_->num_begun();
  // Who has decided something can't give its term up: votes that it has had are for good.
  if (goes_on_ || daemon_->has_won_any()) state.num_jobs += state.num_held;
  return state;
}

PeerStatus Pair::peer_status() const {
  PeerStatus status;
  status.endpoint = to_string(options_.peer);
  status.answers = is_in_sync_ || is_copying_ || answers_;
  status.in_sync = is_in_sync_;
  status.says = last_said_;
  return status;
}

// ---- they meet ----

void Pair::heard(const PairState& theirs) {
  if (theirs.leads) last_heard_ = Clock::now();
  if (role_ == Role::kStandsBy && !is_copying_) daemon_->stand_by(theirs.leads ? theirs.name : "");
  if (role_ != Role::kLeads) return;
  daemon_->hear_peer(true);
  const ha::TermLine line = ha::line_with(rows_.line, theirs.given_up);
  if (line == rows_.line) return;
  rows_.line = line;
  server_->set_line(line);
  daemon_->keep(ha::line_grew({rows_.term, line}), while_alive([this, given_up = theirs.given_up] {
                  if (role_ == Role::kLeads) daemon_->add_bases(given_up);
                }));
}

void Pair::met(const PairState& theirs, ha::Call call) {
  if (is_stopping_) return;
  answers_ = true;
  away_.reset();
  alone_timer_.cancel();
  last_heard_ = Clock::now();
  heard(theirs);
  if (role_ != Role::kStandsBy && role_ != Role::kLeads) return;
  const Decision decision = ha::decide(state(), theirs, yielded_to_);
  switch (decision.move) {
    case PairMove::kWait:
      return say(decision.is_stuck ? LogLevel::kError : LogLevel::kInfo,
                 concat(role_ == Role::kLeads ? "leads on: " : "stands by: ", decision.why));
    case PairMove::kMirror:
      return mirror(theirs, std::move(call));
    case PairMove::kLead:
      return lead(decision.why);
    case PairMove::kYield:
      return yield(theirs);
  }
}

void Pair::away(const ha::Away& its) {
  if (is_stopping_) return;
  answers_ = false;
  away_ = its;
  if (role_ == Role::kLeads) daemon_->hear_peer(false);
  consider_alone();
}

void Pair::consider_alone() {
  if (!away_ || role_ != Role::kStandsBy || is_copying_) return;
  const bool nothing_listens = away_->kind == ha::Away::Kind::kNothingListens;
  ha::Alone alone;
  alone.is_certain = is_yours_ || (nothing_listens && was_in_sync_);
  alone.is_refused = away_->kind == ha::Away::Kind::kRefused;
  alone.lease = options_.lease;
  const auto patience = ha::patience(state(), alone);
  const std::string what = concat(to_string(options_.peer), " ", away_->what);
  if (!patience) {
    const bool lacks = rows_.kind == RowsKind::kCopy;
    return say(
        alone.is_refused || lacks ? LogLevel::kError : LogLevel::kInfo,
        concat("stands by: ", what,
               lacks ? "; this one has not all of its jobs, and waits for it" : "; waits for it"));
  }
  const auto due = last_heard_ + *patience;
  if (due <= Clock::now()) return lead(what);
  say(LogLevel::kInfo, concat("stands by: ", what));
  alone_timer_.expires_at(due);
  alone_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) consider_alone();
  });
}

// Once, however often it is found so.
void Pair::say(LogLevel level, const std::string& what) {
  if (what != std::exchange(last_said_, what)) log_message(level, what);
}

// ---- it stands by ----

void Pair::stand_by(File file) {
  role_ = Role::kStandsBy;
  is_copying_ = false;
  ha::MirrorClientOptions options;
  options.lease = options_.lease;
  ha::MirrorClient::Handlers handlers;
  handlers.copying = [this](const std::string& leader) {
    is_copying_ = true;
    daemon_->stand_by(leader);
    say(LogLevel::kInfo, concat("mirrors ", leader, ": copying its jobs"));
  };
  handlers.in_sync = [this](const ha::SyncedWith& synced) {
    rows_ = {};
    rows_.kind = RowsKind::kSynced;
    rows_.term = synced.term;
    rows_.line = synced.line;
    rows_.leader = synced.leader;
    num_jobs_ = 1;  // perhaps
    distrusts_disk_ = is_yours_ = false;
    is_in_sync_ = was_in_sync_ = true;
    say(LogLevel::kInfo, concat("mirrors ", synced.leader,
                                ": has all its jobs, and goes on with them when it is gone"));
  };
  handlers.lost = [this](const ha::LostLeader& its) { post([this, its] { lost(its); }); };
  handlers.trouble = [this](const std::string& what) { say(LogLevel::kError, what); };
  client_ = std::make_unique<ha::MirrorClient>(io_, std::move(file), options, std::move(handlers));
  caller_->set_last_pause(kStandbyPause);
  caller_->call_now();
}

void Pair::mirror(const PairState& theirs, ha::Call call) {
  if (!client_->can_mirror()) return;
  was_in_sync_ = is_yours_ = false;
  client_->mirror(call.mirror(), theirs.name);
}

void Pair::lost(const ha::LostLeader& its) {
  if (role_ != Role::kStandsBy || is_stopping_) return;
  const bool had_begun = std::exchange(is_copying_, false);
  is_in_sync_ = false;
  daemon_->stand_by("");
  last_heard_ = its.is_silence ? Clock::now() - options_.lease : Clock::now();
  is_yours_ = its.is_yours;
  if (its.was_in_sync && its.is_yours) return lead("its leader has handed over");
  if (its.was_in_sync && its.is_silence) return lead(its.why);
  if (its.was_in_sync) {
    say(LogLevel::kInfo, concat("lost its leader: ", its.why));
    caller_->resume();
    return caller_->call_now();
  }
  if (had_begun) return stand_anew();
  caller_->resume();
}

// What its rows are now is in its file alone.
void Pair::stand_anew() {
  role_ = Role::kEnds;
  client_->stop([this](ha::MirroredJournal its) {
    const auto kept = std::make_shared<ha::MirroredJournal>(std::move(its));
    post([this, kept] {
      client_.reset();
      if (is_stopping_) return;
      if (!kept->trouble.empty()) {
        kept->file.reset();
        return reopen(false);
      }
      know(kept->content);
      stand_by(std::move(kept->file));
    });
  });
}

// ---- it begins to lead ----

void Pair::lead(const std::string& why) {
  if (role_ != Role::kStandsBy || is_stopping_ || is_copying_) return;
  role_ = Role::kBegins;
  caller_->pause();
  alone_timer_.cancel();
  say(LogLevel::kInfo, concat("is to lead: ", why));
  client_->stop([this](ha::MirroredJournal its) {
    const auto kept = std::make_shared<ha::MirroredJournal>(std::move(its));
    post([this, kept] {
      client_.reset();
      if (is_stopping_) return;
      if (kept->trouble.empty()) {
        return begin(std::move(kept->file), std::move(kept->content), kept->before);
      }
      say(LogLevel::kError, concat("can't lead: its jobs can't be read: ", kept->trouble));
      kept->file.reset();
      reopen(false);
    });
  });
}

void Pair::begin(File file, journal::Content content, const journal::Batch& before) {
  role_ = Role::kBegins;
  know(content);
  if (rows_.kind == RowsKind::kCopy) return stand_by(std::move(file));
  std::optional<journal::Rows> rows_before;
  if (rows_.kind == RowsKind::kSynced && !before.empty()) {
    rows_before = content.rows;
    journal::apply_batch(before, *rows_before);
  }
  const auto beginning = std::make_shared<Beginning>();
  beginning->plan = ha::plan_term(rows_, random_id(), std::move(rows_before));
  if (!beginning->plan.goes_on) {
    beginning->batch =
        ha::rows_to_begin(beginning->plan, content.rows, {content.clock_shift, boot_id()});
  }
  beginning->file = std::move(file);
  beginning->content = std::move(content);
  if (beginning->batch.empty()) return began(beginning);
  after(begin_timer_, kBeginLimit, [this] { distrusts_disk_ = true; });
  const auto done = while_alive([this, beginning] { began(beginning); });
  std::thread([beginning, done, life = life_] {
    try {
      beginning->file->commit(beginning->batch);
    } catch (const std::exception& error) {
      beginning->trouble = error.what();
    }
    const std::lock_guard lock(life->mutex);
    if (life->io != nullptr) boost::asio::post(*life->io, done);
  }).detach();
}

void Pair::began(const std::shared_ptr<Beginning>& beginning) {
  begin_timer_.cancel();
  if (is_stopping_) return;
  if (!beginning->trouble.empty()) {
    say(LogLevel::kError, concat("can't lead: ", beginning->trouble, "; tries again after 1 s"));
    distrust_disk(kReopenAfter);
    return stand_by(std::move(beginning->file));
  }
  journal::apply_batch(beginning->batch, beginning->content.rows);
  rows_ = ha::read_leader_rows(beginning->content.rows);
  distrusts_disk_ = false;
  lead_with(*beginning);
}

void Pair::lead_with(Beginning& beginning) {
  const ha::TermPlan& plan = beginning.plan;
  ha::MirrorServerOptions options;
  options.name = options_.name;
  options.term = plan.row.term;
  options.line = plan.row.line;
  ha::MirrorServer::Handlers handlers;
  handlers.mirrored = [this](const std::string& standby) {
    is_in_sync_ = rows_.has_standby = true;
    caller_->pause();
    say(LogLevel::kInfo, concat("leads: ", standby, " mirrors it"));
  };
  handlers.lost = [this](const ha::LostStandby& its) { post([this, its] { lost_standby(its); }); };
  server_ = std::make_shared<ha::MirrorServer>(io_, std::move(options), std::move(handlers));
  std::erase_if(beginning.content.rows,
                [](const auto& row) { return ha::is_leader_row(row.first); });
  const auto deposed = [this](const std::string&) { post([this] { go_over(false); }); };
  KeptJobs kept(server_, std::move(beginning.file), std::move(beginning.content), deposed);
  kept.terms = plan.terms;
  role_ = Role::kLeads;
  has_led_ = true;
  goes_on_ = plan.goes_on;
  is_in_sync_ = was_in_sync_ = is_yours_ = false;
  say(LogLevel::kInfo,
      concat("leads, term ", plan.row.term.number, plan.goes_on ? ", as before" : ""));
  daemon_->lead(std::move(kept));
  door_->set_server(server_);
  caller_->set_last_pause(kLeaderPause);
  caller_->call_now();
}

// ---- it leads ----

void Pair::lost_standby(const ha::LostStandby& its) {
  if (role_ != Role::kLeads || is_stopping_) return;
  is_in_sync_ = false;
  if (its.was_synced) return go_over(its.own_disk);
  rows_.has_standby = false;
  caller_->resume();
}

// Its term is over: by a standby that is lost it begins the next one, by its own disk the standby
// does.
void Pair::go_over(bool own_disk) {
  if (role_ != Role::kLeads || is_stopping_) return;
  role_ = Role::kEnds;
  is_in_sync_ = false;
  caller_->pause();
  door_->set_server(nullptr);
  daemon_->stand_by("", Stores::kKeep);
  const auto server = std::exchange(server_, nullptr);
  if (own_disk) server->hand_over([server] {});
  if (own_disk) distrust_disk(kDistrust);
  say(LogLevel::kWarning, own_disk
                              ? "leads no more: its own disk fails, and its standby goes on"
                              : "begins a new term: its standby is lost, and may have taken over");
  reopen(!own_disk);
}

// The journal that it had as a leader.
void Pair::reopen(bool begins) {
  try {
    auto file = std::make_unique<journal::JournalFile>(options_.directory, options_.durability);
    journal::Content content = file->load();
    if (begins) return begin(std::move(file), std::move(content), {});
    know(content);
    stand_by(std::move(file));
  } catch (const Error& error) {
    say(LogLevel::kError, concat("stands by: ", error.what()));
    distrust_disk(2 * kReopenAfter);
    after(begin_timer_, kReopenAfter, [this, begins] { reopen(begins); });
  }
}

void Pair::yield(const PairState& theirs) {
  role_ = Role::kEnds;
  caller_->pause();
  door_->set_server(nullptr);
  say(LogLevel::kWarning,
      concat("leads no more: ", theirs.name, " leads, too, and this one has no jobs"));
  yielded_to_ = theirs.term.id;
  const auto end = while_alive([this, name = theirs.name] {
    post([this, name] {
      if (is_stopping_) return;
      daemon_->stand_by(name);
      server_.reset();
      reopen(false);
    });
  });
  // First it ends: then it is clear what it has decided.
  daemon_->end_jobs(while_alive([this, end] {
    if (goes_on_ || daemon_->has_won_any()) return end();
    daemon_->keep(ha::term_given_up(rows_.term.id, rows_.given_up), end);
  }));
}

// The other one had better lead.
void Pair::distrust_disk(milliseconds time) {
  distrusts_disk_ = true;
  after(disk_timer_, time, [this] {
    distrusts_disk_ = false;
    consider_alone();
  });
}

void Pair::stop(std::function<void()> done) {
  is_stopping_ = true;
  caller_->pause();
  alone_timer_.cancel();
  const auto called = std::make_shared<bool>(false);
  const auto once = while_alive([called, done = std::move(done)] {
    if (!std::exchange(*called, true)) done();
  });
  after(stop_timer_, kStopLimit, once);
  if (role_ == Role::kLeads) {
    return daemon_->end_jobs(while_alive([this, once] { server_->hand_over(once); }));
  }
  if (role_ == Role::kStandsBy) {
    // Its last word leaves meanwhile: nobody tells when it has.
    return client_->leave([this, once] { after(begin_timer_, kLastWord, once); });
  }
  post(once);
}

}  // namespace ddprun::rendezvous
