// SPDX-License-Identifier: Apache-2.0
// A Pair that begins to lead, leads, and leads no more.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/boot_id.h"
#include "common/error.h"
#include "common/random_id.h"
#include "rendezvous/daemon/pair.h"

namespace ddprun::rendezvous {

using ha::PairState;
using ha::RowsKind;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLeaderPause{2'000};  // between calls, at most
constexpr milliseconds kBeginLimit{2'000};   // for the commit of a term; then the other one may
constexpr milliseconds kReopenAfter{1'000};
constexpr milliseconds kDistrust{10'000};  // after its own disk has failed as a leader's

}  // namespace

// ---- it begins ----

void Pair::lead(const std::string& why) {
  if (role_ != Role::kStandsBy || is_stopping_ || is_copying_) return;
  role_ = Role::kBegins;
  caller_->pause();
  alone_timer_.cancel();
  begin_in_time();
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
      distrust_disk(kReopenAfter);
      reopen(false);
    });
  });
}

// A disk that hangs: the other one may lead meanwhile.
void Pair::begin_in_time() {
  after(begin_timer_, kBeginLimit, [this] {
    if (role_ == Role::kBegins) distrusts_disk_ = true;
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
  KeptTerm kept;
  kept.plan = ha::plan_term(rows_, random_id(), std::move(rows_before));
  if (!kept.plan.goes_on) {
    kept.batch = ha::rows_to_begin(kept.plan, content.rows, {content.clock_shift, boot_id()});
  }
  kept.file = std::move(file);
  kept.content = std::move(content);
  if (kept.batch.empty()) return began(kept);
  begin_in_time();
  term_keeper_.keep(std::move(kept), [this](KeptTerm& its) { began(its); });
}

void Pair::began(KeptTerm& kept) {
  begin_timer_.cancel();
  if (is_stopping_) return;
  if (!kept.trouble.empty()) {
    say(LogLevel::kError, concat("can't lead: ", kept.trouble, "; tries again after 1 s"));
    distrust_disk(kReopenAfter);
    return stand_by(std::move(kept.file));
  }
  journal::apply_batch(kept.batch, kept.content.rows);
  rows_ = ha::read_leader_rows(kept.content.rows);
  distrusts_disk_ = false;
  lead_with(kept);
}

void Pair::lead_with(KeptTerm& kept) {
  const std::uint64_t number = ++num_led_;
  const ha::TermPlan& plan = kept.plan;
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
  handlers.lost = [this, number](const ha::LostStandby& its) {
    post([this, number, its] {
      if (leads_in(number)) lost_standby(its);
    });
  };
  server_ = std::make_shared<ha::MirrorServer>(io_, std::move(options), std::move(handlers));
  std::erase_if(kept.content.rows, [](const auto& row) { return ha::is_leader_row(row.first); });
  const auto deposed = [this, number](const std::string&) {
    post([this, number] {
      if (leads_in(number)) go_over(false);
    });
  };
  KeptJobs jobs(server_, std::move(kept.file), std::move(kept.content), deposed);
  jobs.terms = plan.terms;
  role_ = Role::kLeads;
  goes_on_ = plan.goes_on;
  is_in_sync_ = was_in_sync_ = is_yours_ = false;
  say(LogLevel::kInfo,
      concat("leads, term ", plan.row.term.number, plan.goes_on ? ", as before" : ""));
  daemon_->lead(std::move(jobs));
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

// The journal that it had as a leader. Its disk may hang, and this thread must not.
void Pair::reopen(bool begins) {
  term_keeper_.open(opener(), [this, begins](KeptTerm& its) { reopened(begins, its); });
}

void Pair::reopened(bool begins, KeptTerm& its) {
  if (is_stopping_) return;
  if (!its.trouble.empty()) {
    its.file.reset();
    say(LogLevel::kError, concat("stands by: ", its.trouble));
    distrust_disk(2 * kReopenAfter);
    return after(reopen_timer_, kReopenAfter, [this, begins] { reopen(begins); });
  }
  if (begins) return begin(std::move(its.file), std::move(its.content), {});
  know(its.content);
  stand_by(std::move(its.file));
}

}  // namespace ddprun::rendezvous
