// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/pair_rules.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace ddprun::ha {
namespace {

using std::chrono::milliseconds;

Decision waits(std::string why) { return {PairMove::kWait, std::move(why), false}; }
Decision is_stuck(std::string why) { return {PairMove::kWait, std::move(why), true}; }
Decision leads(std::string why) { return {PairMove::kLead, std::move(why), false}; }
Decision mirrors(std::string why) { return {PairMove::kMirror, std::move(why), false}; }

// With these rows a side may lead.
bool has_all(const PairState& state) {
  return state.rows == RowsKind::kLeads || state.rows == RowsKind::kSynced;
}

// `state` goes on from what the other one has.
bool goes_on_from(const PairState& state, const PairState& other) {
  return has_all(state) && has_all(other) && has_term(state.line, other.term.id);
}

// The newest term before its own in which something may have been decided; null: none. One that
// either of the two gave up is none, though it is in the lines of both by then.
const std::string* basis_of(const PairState& state, const PairState& other) {
  const auto is_given_up = [&](const std::string& id) {
    return has_term(state.given_up, id) || has_term(other.given_up, id);
  };
  if (state.line.empty()) return nullptr;
  const auto found = std::find_if_not(state.line.begin() + 1, state.line.end(), is_given_up);
  return found == state.line.end() ? nullptr : &*found;
}

// Neither, or each, goes on from what the other one has.
Decision of_two_alike(const PairState& mine, const PairState& theirs) {
  const bool is_mine = mine.rows == RowsKind::kLeads, is_theirs = theirs.rows == RowsKind::kLeads;
  if (is_mine != is_theirs) {
    return is_mine ? leads(concat(theirs.name, " stands by, and this one led last"))
                   : waits(concat(theirs.name, " led last"));
  }
  const bool is_same = mine.term.id == theirs.term.id;
  if (is_mine && !is_same && mine.num_jobs > 0 && theirs.num_jobs > 0) {
    return leads(concat(theirs.name, " stands by, and has other jobs"));
  }
  const bool has_more = !is_same && mine.num_jobs > 0 && theirs.num_jobs == 0;
  const bool has_less = !is_same && mine.num_jobs == 0 && theirs.num_jobs > 0;
  if (has_more || (mine.is_first && !has_less)) {
    return leads(concat(theirs.name, " stands by"));
  }
  return waits(concat(theirs.name, " is to lead"));
}

Decision both_stand_by(const PairState& mine, const PairState& theirs) {
  if (!has_all(mine)) {
    if (has_all(theirs)) return waits(concat(theirs.name, " is to lead"));
    if (mine.rows == RowsKind::kCopy || theirs.rows == RowsKind::kCopy) {
      const bool is_mine = mine.rows == RowsKind::kCopy;
      return is_stuck(concat(
          mine.has_lost_rows ? "this one's journal was damaged and lacks jobs, "
          : is_mine          ? "this one has a part of a leader's jobs only, "
                             : "this one has no jobs, ",
          theirs.name, theirs.rows == RowsKind::kCopy ? " a part of them only" : " has none",
          ": neither may lead; with the leader's whole --state-dir one of them can, and with empty "
          "ones, where those jobs are over, both"));
    }
    return mine.is_first ? leads(concat("there are no jobs yet, at ", theirs.name, " neither"))
                         : waits(concat(theirs.name, " is to lead"));
  }
  if (!has_all(theirs)) return leads(concat(theirs.name, " stands by, and has not all"));
  const bool is_ahead = goes_on_from(mine, theirs), is_behind = goes_on_from(theirs, mine);
  if (is_ahead && !is_behind) return leads(concat(theirs.name, " stands by, and has less"));
  if (is_behind && !is_ahead) return waits(concat(theirs.name, " has more, and is to lead"));
  return of_two_alike(mine, theirs);
}

Decision other_leads(const PairState& mine, const PairState& theirs, std::string_view yielded_to) {
  const bool has_yielded = !yielded_to.empty() && has_term(theirs.line, yielded_to);
  if (has_all(mine) && !has_yielded && !goes_on_from(theirs, mine) && mine.num_jobs > 0) {
    return leads(concat(theirs.name, " leads, but knows nothing of this one's jobs"));
  }
  // Of what the other one has not won yet it may have less than this side.
  if (has_all(mine) && theirs.num_held > 0) {
    return waits(concat(theirs.name, " leads, and waits for nodes of its jobs yet"));
  }
  return mirrors(concat(theirs.name, " leads"));
}

Decision both_lead(const PairState& mine, const PairState& theirs) {
  // Each takes the jobs for its own, and nodes obey the first one that they meet.
  if (mine.term.id == theirs.term.id && !can_yield(mine, theirs) && !can_yield(theirs, mine)) {
    return is_stuck(concat(theirs.name,
                           " leads, too, in this one's own term: one --state-dir is a copy of the "
                           "other; stop the one that no node is at, empty its --state-dir, and "
                           "start it again"));
  }
  if (!can_yield(mine, theirs) || (can_yield(theirs, mine) && mine.is_first)) {
    return waits(concat(theirs.name, " leads, too"));
  }
  return {PairMove::kYield, concat(theirs.name, " leads, too, and this one has no jobs"), false};
}

TermLine shortened(TermLine line) {
  line.resize(std::min(line.size(), kMaxTermLine));
  return line;
}

}  // namespace

bool can_yield(const PairState& mine, const PairState& theirs) {
  if (mine.num_jobs > 0) return false;
  if (mine.num_held == 0) return true;
  const std::string* basis = basis_of(mine, theirs);
  return basis != nullptr && has_term(theirs.line, *basis);
}

Decision decide(const PairState& mine, const PairState& theirs, std::string_view yielded_to) {
  if (mine.is_first == theirs.is_first && mine.name == theirs.name) {
    return is_stuck(concat("what ", mine.is_first ? "--standby" : "--standby-of",
                           " names is this ddprund itself, ", mine.name,
                           " (or one of its --ha-name): name the other one"));
  }
  if (mine.is_first == theirs.is_first) {
    return is_stuck(concat(theirs.name, " was started with ",
                           mine.is_first ? "--standby" : "--standby-of",
                           ", as this one: give one "
                           "of the two ",
                           mine.is_first ? "--standby-of" : "--standby"));
  }
  if (mine.leads) {
    return theirs.leads ? both_lead(mine, theirs) : waits(concat(theirs.name, " stands by"));
  }
  Decision decision =
      theirs.leads ? other_leads(mine, theirs, yielded_to) : both_stand_by(mine, theirs);
  if (decision.move == PairMove::kLead && mine.distrusts_disk) {
    return waits(concat(decision.why, "; its own disk can't be relied on yet"));
  }
  return decision;
}

std::optional<milliseconds> patience(const PairState& mine, const Alone& alone) {
  if (mine.distrusts_disk) return std::nullopt;
  switch (mine.rows) {
    case RowsKind::kLeads:
      return milliseconds(0);
    case RowsKind::kSynced:
      if (alone.is_refused) break;
      return alone.is_certain ? milliseconds(0) : alone.lease;
    case RowsKind::kEmpty:
      if (!mine.is_first || alone.is_refused) break;
      return alone.lease;
    case RowsKind::kCopy:
      break;
  }
  return std::nullopt;
}

TermPlan plan_term(const LeaderRows& rows, const std::string& id,
                   std::optional<journal::Rows> rows_before) {
  DDPRUN_CHECK(rows.kind != RowsKind::kCopy);
  const bool led = rows.kind == RowsKind::kLeads;
  TermPlan plan;
  plan.goes_on = led && !rows.has_standby && !has_term(rows.given_up, rows.term.id);
  if (plan.goes_on) {
    plan.row = {rows.term, rows.line};
    plan.terms.goes_on = true;
    plan.terms.bases.assign(rows.line.begin() + 1, rows.line.end());
  } else {
    TermLine line = rows.line;
    line.insert(line.begin(), id);
    plan.row = {{id, rows.term.number + 1}, shortened(std::move(line))};
    plan.terms.bases = rows.line;
  }
  plan.terms.own = plan.row.term.id;
  plan.terms.is_incumbent = rows.kind != RowsKind::kSynced;
  if (!plan.terms.is_incumbent) plan.terms.rows_before = std::move(rows_before);
  return plan;
}

journal::Batch rows_to_begin(const TermPlan& plan, const journal::Rows& rows,
                             const membership::RowsClock& clock) {
  journal::Batch batch = term_begun(plan.row, rows);
  if (plan.goes_on) return batch;
  journal::Batch marks = membership::held_marks(plan.terms, rows, clock);
  std::ranges::move(marks, std::back_inserter(batch));
  return batch;
}

}  // namespace ddprun::ha
