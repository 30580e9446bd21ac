// SPDX-License-Identifier: Apache-2.0
// The part of PairWorld about its sides: who leads.
#include <utility>

#include "common/log.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/ha/pair_world.h"

namespace ddprun::ha::testing {

using journal::apply_batch;

PairState PairWorld::state_of(int side) const {
  const Side& it = sides_[side];
  const LeaderRows rows = read_leader_rows(it.rows);
  PairState state;
  state.name = side == 0 ? "a" : "b";
  state.is_first = side == 0;
  state.leads = it.leads;
  state.rows = rows.kind;
  state.term = rows.term;
  state.line = rows.line;
  state.given_up = rows.given_up;
  if (state.rows == RowsKind::kLeads && it.has_led && !it.leads) state.rows = RowsKind::kSynced;
  state.distrusts_disk = it.distrusts_disk && !it.leads;
  for (const std::uint64_t job : jobs_in(it.rows)) {
    // Who leads has to tell its nodes of its end yet.
    if (it.leads ? it.won.contains(job) : !is_over_in(it.rows, job)) ++state.num_jobs;
  }
  if (!it.leads) return state;
  state.num_held = it.held ? it.held->num_unsettled() : 0;
  if (it.may_have_decided) state.num_jobs += state.num_held;
  return state;
}

bool PairWorld::mirrors(int side) const {
  return session_.stage != Stage::kNone && session_.leader != side && !session_.standby_knows;
}

bool PairWorld::is_shared(int side) const {
  return session_.stage >= Stage::kShared && session_.leader == side && !session_.leader_knows;
}

void PairWorld::start(int side) {
  tell(side, "starts");
  Side& it = sides_[side];
  it.is_up = true;
  it.leads = it.has_led = it.may_have_decided = it.distrusts_disk = false;
  it.yielded_to.clear();
  it.heard.reset();
}

void PairWorld::die(int side) {
  tell(side, "dies");
  Side& it = sides_[side];
  // It asked the nodes whether the last batch, a job's end, was said. Its next process has no job,
  // and mirrors the other one, who knows nothing of the votes.
  for (const std::uint64_t job : jobs_in(it.rows)) {
    if (it.leads && !it.won.contains(job) && is_over_in(it.rows, job)) {
      dead_terms_.insert(it.term.term.id);
    }
  }
  stop_leading(side);
  it.is_up = false;
  it.heard.reset();
  if (session_.stage == Stage::kNone) return;
  session_.is_cut = true;
  (session_.leader == side ? session_.leader_knows : session_.standby_knows) = true;
  notice(1 - side);
}

void PairWorld::stop_leading(int side) {
  for (auto& [name, agent] : agents_) {
    if (agent.at == side) lose(agent);
  }
  Side& it = sides_[side];
  it.leads = false;
  it.held.reset();
  it.won.clear();
}

void PairWorld::call(int side) {
  const Side& other = sides_[1 - side];
  const Side& it = sides_[side];
  if (!it.is_up || mirrors(side) || is_shared(side) || it.heard || !other.is_up) return;
  if (other.leads) heard_given_up(1 - side, read_leader_rows(it.rows).given_up);
  if (other.is_up) sides_[side].heard = as_told(state_of(1 - side));
}

void PairWorld::act(int side) {
  Side& it = sides_[side];
  if (!it.is_up || !it.heard) return;
  const PairState theirs = *std::exchange(it.heard, std::nullopt);
  if (mirrors(side) || is_shared(side)) return;
  if (it.leads) heard_given_up(side, theirs.given_up);
  const ha::Decision what = decide(state_of(side), theirs, it.yielded_to);
  switch (what.move) {
    case PairMove::kWait:
      if (it.leads && theirs.leads) ++seen_.both_led;
      break;
    case PairMove::kMirror:
      mirror(side);
      break;
    case PairMove::kLead:
      lead(side);
      break;
    case PairMove::kYield:
      yield(side, theirs);
      break;
  }
}

void PairWorld::stand_alone(int side, bool is_certain) {
  const Side& it = sides_[side];
  if (!it.is_up || it.leads || mirrors(side)) return;
  if (patience(state_of(side), {is_certain, false, std::chrono::milliseconds(3'000)})) {
    lead(side);
  } else if (bug_ == Bug::kCopyLeads && read_leader_rows(it.rows).kind == RowsKind::kCopy) {
    lead(side);
  }
}

void PairWorld::lead(int side) {
  Side& it = sides_[side];
  if (has_faults_ && chance(5)) {
    tell(side, "can't keep its term");
    ++seen_.no_term;
    it.distrusts_disk = true;
    return;
  }
  it.distrusts_disk = false;
  LeaderRows rows = read_leader_rows(it.rows);
  if (bug_ == Bug::kCopyLeads && rows.kind == RowsKind::kCopy) {
    rows.kind = RowsKind::kSynced;
    rows.term = sides_[1 - side].term.term;
    rows.line = sides_[1 - side].term.line;
  }
  if (bug_ == Bug::kGoesOnBesideStandby) rows.has_standby = false;
  if (rows.kind == RowsKind::kSynced) ++seen_.take_overs;
  const TermPlan plan = plan_term(rows, new_term(), it.before);
  apply_batch(rows_to_begin(plan, it.rows, {}), it.rows);
  std::string line;
  for (const std::string& id : plan.row.line) line += " " + id.substr(id.find_first_not_of('0'));
  tell(side, concat(plan.goes_on              ? "goes on in"
                    : plan.terms.is_incumbent ? "begins"
                                              : "takes over with",
                    line));
  it.before.reset();
  it.leads = it.has_led = true;
  it.may_have_decided = plan.goes_on;
  it.term = plan.row;
  it.won.clear();
  journal::Rows jobs = own_rows(it.rows, false);
  it.held = std::make_unique<membership::HeldJobs>(plan.terms, jobs, membership::RowsClock(), now_);
  take(side, it.held->begin());
  // Those that are not held: an earlier process has won them in this term.
  for (const std::uint64_t job : jobs_in(jobs)) it.won.insert(job);
}

void PairWorld::yield(int side, const PairState& theirs) {
  Side& it = sides_[side];
  ++seen_.yields;
  tell(side, it.may_have_decided ? "yields" : "yields, and gives its term up");
  if (session_.stage != Stage::kNone && session_.leader == side) cut();
  if (!it.may_have_decided || bug_ == Bug::kGivesUpWhatItWon) {
    ++seen_.given_up;
    apply_batch(term_given_up(it.term.term.id, read_leader_rows(it.rows).given_up), it.rows);
  }
  if (it.may_have_decided) dead_terms_.insert(it.term.term.id);
  stop_leading(side);
  it.yielded_to = theirs.term.id;
}

void PairWorld::heard_given_up(int side, const TermLine& given_up) {
  Side& it = sides_[side];
  const TermLine line = line_with(it.term.line, given_up);
  if (line == it.term.line) return;
  it.term.line = line;
  if (!commit(side, {{kTermRow, encode_term_row(it.term)}}) || !it.held) return;
  take(side, it.held->add_bases(given_up));
}

// Its journal says that another one may go on with its jobs.
void PairWorld::deposed(int side) {
  tell(side, "is deposed");
  cut();
  session_.leader_knows = true;
  stop_leading(side);
  lead(side);
}

}  // namespace ddprun::ha::testing
