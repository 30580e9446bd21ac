// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/pair.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

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

// The rows may lack their end, after a loss of power: for so long at least the other one, whose
// rows don't, had better go on with the jobs. By then no node of a job that has the default
// time-outs waits for them any more.
constexpr milliseconds kRowsMayLackEnd{100'000}, kSlack{10'000}, kLongestDistrust{900'000};
constexpr char kHasLostRows[] =
    "this one's journal was damaged and lacks jobs, and waits for it; where that is gone for good, "
    "the pair's first begins without those jobs with an empty --state-dir";
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

// By then none of a job in the rows does, either, but where somebody gave it days: those don't keep
// all others waiting.
milliseconds time_to_distrust(const journal::Rows& rows) {
  milliseconds longest = kRowsMayLackEnd;
  for (const auto& [job, its_rows] : membership::rows_by_job(rows)) {
    try {
      const auto its = membership::read_job(its_rows, {}).timeouts;
      longest = std::max(longest, its.rendezvous_lost + its.stop_grace + kSlack);
    } catch (const std::exception&) {  // nobody goes on with it
    }
  }
  return std::min(longest, kLongestDistrust);
}

}  // namespace

Pair::Pair(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
           PairOptions pair)
    : io_(io),
      options_(std::move(pair)),
      alone_timer_(io),
      disk_timer_(io),
      begin_timer_(io),
      reopen_timer_(io),
      stop_timer_(io),
      term_keeper_(io) {
  File file = opener()();
  journal_path_ = file->name();
  journal::Content content = file->load();
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
    const milliseconds time = time_to_distrust(content.rows);
    log_warning(
        "this machine has ended since its last decisions, which may not be on its disk: for ",
        std::chrono::ceil<std::chrono::seconds>(time).count(),
        " s the other one had better go on with the jobs (--durability=disk keeps all)");
    distrust_disk(time);
  }
  ha::MirrorDoorOptions door;
  door.state = [this] { return ha::as_told(own_state()); };
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
  calls.state = [this] { return ha::as_told(own_state()); };
  ha::PeerCaller::Handlers handlers;
  handlers.met = [this](const PairState& theirs, ha::Call call) { met(theirs, std::move(call)); };
  handlers.away = [this](const ha::Away& its) { away(its); };
  caller_ = std::make_unique<ha::PeerCaller>(io, std::move(calls), std::move(handlers));
  stand_by(std::move(file));
}

Pair::~Pair() {
  life_.reset();
  caller_.reset();
  client_.reset();
  daemon_.reset();
  server_.reset();
  door_.reset();
}

std::function<void()> Pair::while_alive(std::function<void()> call) {
  return [life = std::weak_ptr(life_), call = std::move(call)] {
    if (life.lock()) call();
  };
}

void Pair::post(std::function<void()> call) {
  boost::asio::post(io_, while_alive(std::move(call)));
}

void Pair::after(boost::asio::steady_timer& timer, milliseconds time, std::function<void()> call) {
  timer.expires_after(time);
  timer.async_wait([call = while_alive(std::move(call))](boost::system::error_code error) {
    if (!error) call();
  });
}

// ---- what it is, and what the other one is told ----

std::function<Pair::File()> Pair::opener() const {
  return [directory = options_.directory, durability = options_.durability] {
    const auto lost = [](const journal::Rows&) { return ha::rows_lost(); };
    return std::make_unique<journal::JournalFile>(directory, durability, lost);
  };
}

void Pair::know(const journal::Content& content) {
  for (const std::string& loss : content.losses) log_warning(loss);
  rows_ = ha::read_leader_rows(content.rows);
  num_jobs_ = jobs_not_over(content.rows);
}

PairState Pair::own_state() const {
  PairState state;
  state.name = options_.name;
  state.is_first = options_.is_first;
  state.leads = role_ == Role::kLeads;
  state.given_up = rows_.given_up;
  state.rows = rows_.kind;
  state.has_lost_rows = rows_.are_lost;
  if (!state.leads && state.rows == RowsKind::kLeads && num_led_ > 0)
    state.rows = RowsKind::kSynced;
  state.distrusts_disk = !state.leads && distrusts_disk_;
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
  status.journal_path = journal_path_;
  status.trouble = copy_trouble_;
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
  const Decision decision = ha::decide(own_state(), theirs, yielded_to_);
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
  const auto patience = ha::patience(own_state(), alone);
  const std::string what = concat(to_string(options_.peer), " ", away_->what);
  if (!patience) {
    const bool lacks = rows_.kind == RowsKind::kCopy;
    return say(alone.is_refused || lacks ? LogLevel::kError : LogLevel::kInfo,
               concat("stands by: ", what, "; ",
                      rows_.are_lost ? kHasLostRows
                      : lacks        ? "this one has not all of its jobs, and waits for it"
                                     : "waits for it"));
  }
  const auto due = last_heard_ + *patience;
  if (due <= Clock::now()) return lead(what);
  say(LogLevel::kInfo, concat("stands by: ", what));
  // A moment later: by then it is due.
  const auto left = std::chrono::ceil<milliseconds>(due - Clock::now());
  after(alone_timer_, left, [this] { consider_alone(); });
}

// Once, however often it is found so.
void Pair::say(LogLevel level, const std::string& what) {
  if (what != std::exchange(last_said_, what)) log_message(level, what);
}

void Pair::set_security(PortSecurity security, membership::LinkSecurity towards_peer) {
  daemon_->set_security(std::move(security));
  caller_->set_security(std::move(towards_peer));
}

// ---- it ends ----

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
    return client_->leave([this, once] { after(stop_timer_, kLastWord, once); });
  }
  post(once);
}

}  // namespace ddprun::rendezvous
