// SPDX-License-Identifier: Apache-2.0
// A Pair that stands by.
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/daemon/pair.h"

namespace ddprun::rendezvous {

using ha::PairState;
using ha::RowsKind;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kStandbyPause{500};  // between calls, at most

}  // namespace

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
    copy_trouble_.clear();
    say(LogLevel::kInfo, concat("mirrors ", synced.leader,
                                ": has all its jobs, and goes on with them when it is gone"));
  };
  handlers.lost = [this](const ha::LostLeader& its) { post([this, its] { lost(its); }); };
  handlers.trouble = [this](const std::string& what) {
    copy_trouble_ = what;
    say(LogLevel::kError, what);
  };
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

}  // namespace ddprun::rendezvous
