// SPDX-License-Identifier: Apache-2.0
// The part of PairWorld about what its sides keep and mirror, and how that fails.
#include <utility>

#include "common/log.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/ha/pair_world.h"

namespace ddprun::ha::testing {

using journal::apply_batch;

journal::Rows PairWorld::own_rows(const journal::Rows& rows, bool is_own) {
  journal::Rows chosen;
  for (const auto& [key, content] : rows) {
    if (is_leader_row(key) == is_own) chosen[key] = content;
  }
  return chosen;
}

void PairWorld::keep(int side, const journal::Batch& batch) {
  apply_batch(batch, sides_[side].rows);
}

bool PairWorld::commit(int side, const journal::Batch& batch) {
  Side& it = sides_[side];
  if (session_.stage == Stage::kNone || session_.leader != side || session_.leader_knows) {
    keep(side, batch);
    return true;
  }
  Side& standby = sides_[1 - side];
  const bool shared = is_shared(side);
  const bool fails = has_faults_ && chance(2);
  if (session_.is_cut || fails) {
    if (bug_ == Bug::kSaysBeforeAck) return true;
    if (shared) return deposed(side), false;
    cut();
    keep(side, batch);
    return true;
  }
  if (session_.stage >= Stage::kCopied) {
    journal::Batch sent;
    for (const auto& change : batch) {
      if (!is_leader_row(change.key)) sent.push_back(change);
    }
    standby.before = own_rows(standby.rows, false);
    apply_batch(sent, standby.rows);
  }
  if (!shared) {
    keep(side, batch);
    return true;
  }
  if (!has_faults_) {
    keep(side, batch);
    return true;
  }
  switch (pick(1, 40)) {
    case 1:  // the acknowledgement is lost
      deposed(side);
      return false;
    case 2:
      die(side);
      return false;
    case 3:  // its own disk fails: the standby is told to go on
      session_.is_yours = true;
      stop_leading(side);
      tell(side, "loses its disk's help, and says yours");
      it.distrusts_disk = true;
      cut();
      return false;
    default:
      keep(side, batch);
  }
  if (!chance(1)) return true;
  die(side);  // kept, and not said
  return false;
}

// ---- the mirror ----

void PairWorld::mirror(int side) {
  const int leader = 1 - side;
  if (!sides_[leader].is_up || !sides_[leader].leads || sides_[side].leads) return;
  if (session_.stage != Stage::kNone && !(session_.leader_knows && session_.standby_knows)) return;
  session_ = {leader, Stage::kCopying};
}

void PairWorld::go_on_mirroring() {
  if (session_.stage == Stage::kNone || session_.is_cut) return;
  Side &leader = sides_[session_.leader], &standby = sides_[1 - session_.leader];
  switch (session_.stage) {
    case Stage::kNone:
    case Stage::kSynced:
      return;
    case Stage::kCopying: {
      journal::Rows rows = own_rows(leader.rows, false);
      rows.merge(own_rows(standby.rows, true));
      standby.rows = std::move(rows);
      apply_batch(copy_begun("leader"), standby.rows);
      standby.before.reset();
      session_.stage = Stage::kCopied;
      tell(1 - session_.leader, "has a copy");
      return;
    }
    case Stage::kCopied:
      keep(session_.leader, standby_came("standby", leader.term));
      session_.stage = Stage::kShared;
      tell(session_.leader, "shares");
      return;
    case Stage::kShared:
      session_.stage = Stage::kSaid;
      return;
    case Stage::kSaid:
      apply_batch(copy_synced({leader.term.term, "leader", leader.term.line}), standby.rows);
      session_.stage = Stage::kSynced;
      ++seen_.syncs;
      tell(1 - session_.leader, "is in sync");
      return;
  }
}

void PairWorld::cut() { session_.is_cut = true; }

// That side of a mirror that is cut finds out.
void PairWorld::notice(int side) {
  if (session_.stage == Stage::kNone || !session_.is_cut || !sides_[side].is_up) return;
  if (session_.leader != side) {
    if (session_.standby_knows) return;
    session_.standby_knows = true;
    if (session_.is_yours) stand_alone(side, true);
    return;
  }
  if (session_.leader_knows) return;
  if (is_shared(side) && sides_[side].leads) return deposed(side);
  session_.leader_knows = true;
}

// SIGTERM: its last words are that the other one is to go on.
void PairWorld::stop_leader(int side) {
  if (!sides_[side].is_up || !sides_[side].leads) return;
  if (is_shared(side) && session_.stage == Stage::kSynced && !session_.is_cut) {
    session_.is_yours = chance(90);
  }
  die(side);
}

void PairWorld::stop_standby(int side) {
  if (!sides_[side].is_up || sides_[side].leads) return;
  if (mirrors(side) && session_.stage == Stage::kSynced) {
    apply_batch(copy_begun("leader"), sides_[side].rows);
    tell(side, "leaves");
    if (!session_.is_cut && !session_.leader_knows && chance(80)) {  // and it is heard
      keep(session_.leader, standby_left());
      session_.leader_knows = session_.is_cut = true;
    }
  }
  die(side);
}

// Only where the other one has all that anybody was told of.
void PairWorld::lose_disk(int side) {
  Side& it = sides_[side];
  const LeaderRows mine = read_leader_rows(it.rows),
                   theirs = read_leader_rows(sides_[1 - side].rows);
  const bool other_has_all =
      (theirs.kind == RowsKind::kLeads || theirs.kind == RowsKind::kSynced) &&
      has_term(theirs.line, mine.term.id) &&
      (mine.term.id != theirs.term.id || mine.kind == RowsKind::kLeads);
  if (it.is_up || mine.kind == RowsKind::kEmpty) return;
  if (mine.kind != RowsKind::kCopy && !other_has_all) return;
  if (mine.kind == RowsKind::kCopy && theirs.kind != RowsKind::kLeads) return;
  tell(side, "finds an empty disk");
  // The end of a job that the other one alone has, and nobody was told of: it has no job to go on
  // with, so it mirrors this one, which begins without having heard it.
  const journal::Rows& others = sides_[1 - side].rows;
  for (const std::uint64_t job : jobs_in(others)) {
    if (is_over_in(others, job) && !ended_.contains(job)) lost_ends_.insert({job, mine.term.id});
  }
  it.rows.clear();
  it.before.reset();
}

}  // namespace ddprun::ha::testing
