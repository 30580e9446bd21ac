// SPDX-License-Identifier: Apache-2.0
// The half of PairWorld about its sides: who leads, what is kept and mirrored, what fails.
#include "tests/rendezvous/ha/pair_world.h"

#include <algorithm>

#include "common/log.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha::testing {

using journal::apply_batch;

namespace {

journal::Rows own_rows(const journal::Rows& rows, bool is_own) {
  journal::Rows chosen;
  for (const auto& [key, content] : rows) {
    if (is_leader_row(key) == is_own) chosen[key] = content;
  }
  return chosen;
}

}  // namespace

std::optional<std::string> PairWorld::run() {
  ends_often_ = chance(40);
  for (int side = 0; side < 2; ++side) start(side);
  lead(0);
  begin_jobs();
  mirror(1);
  for (int i = pick(0, 400); i > 0 && !violation_; --i) turn();
  if (!violation_) settle();
  return violation_;
}

void PairWorld::violate(const std::string& what) {
  if (!violation_) violation_ = what;
}

void PairWorld::tell(int side, const std::string& what) {
  constexpr std::size_t kMostLines = 60;
  story_.push_back(concat(side == 0 ? "a " : "b ", what));
  if (story_.size() > kMostLines) story_.pop_front();
}

std::string PairWorld::story() const {
  std::string all;
  for (const std::string& line : story_) all += line + "\n";
  return all;
}

std::string PairWorld::new_term() {
  std::string id = concat(++num_terms_);
  return std::string(32 - id.size(), '0') + id;
}

// ---- one side ----

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
  it.leads = it.has_led = it.may_have_decided = false;
  it.yielded_to.clear();
  it.heard.reset();
}

void PairWorld::die(int side) {
  tell(side, "dies");
  Side& it = sides_[side];
  let_agents_go(side);
  it.is_up = it.leads = false;
  it.held.reset();
  it.won.clear();
  it.heard.reset();
  if (session_.stage == Stage::kNone) return;
  session_.is_cut = true;
  (session_.leader == side ? session_.leader_knows : session_.standby_knows) = true;
  notice(1 - side);
}

void PairWorld::let_agents_go(int side) {
  for (auto& [name, agent] : agents_) {
    if (agent.at == side) lose(agent);
  }
}

void PairWorld::call(int side) {
  const Side& other = sides_[1 - side];
  const Side& it = sides_[side];
  if (!it.is_up || mirrors(side) || is_shared(side) || it.heard || !other.is_up) return;
  if (other.leads) heard_given_up(1 - side, read_leader_rows(it.rows).given_up);
  if (other.is_up) sides_[side].heard = state_of(1 - side);
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
  let_agents_go(side);
  it.leads = false;
  it.held.reset();
  it.won.clear();
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
  let_agents_go(side);
  lead(side);
}

// ---- what is kept ----

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
      let_agents_go(side);
      tell(side, "loses its disk's help, and says yours");
      it.leads = false;
      it.held.reset();
      it.won.clear();
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
  it.rows.clear();
  it.before.reset();
}

// ---- what happens ----

void PairWorld::turn() {
  const int side = pick(0, 1), what = pick(1, 1000);
  const std::uint64_t job = static_cast<std::uint64_t>(pick(1, 2));
  const bool decides = sides_[side].leads && sides_[side].is_up && sides_[side].won.contains(job);
  if (what <= 500) {
    agent_turn();
  } else if (what <= 580) {
    call(side);
  } else if (what <= 660) {
    act(side);
  } else if (what <= 740) {
    go_on_mirroring();
  } else if (what <= 830) {
    if (decides) ends_often_&& chance(30) ? end_job(side, job) : decide_job(side, job);
  } else if (what <= 836) {
    if (decides) end_job(side, job);
  } else if (what <= 860) {
    notice(side);
  } else if (what <= 895) {
    stand_alone(side, false);
  } else if (what <= 910) {
    cut();
  } else if (what <= 922) {
    die(side);
  } else if (what <= 930) {
    stop_leader(side);
  } else if (what <= 936) {
    stop_standby(side);
  } else if (what <= 942) {
    lose_disk(side);
  } else if (what <= 990) {
    if (!sides_[side].is_up) start(side);
  } else {
    pass(std::chrono::milliseconds(pick(1, 5'000)));
  }
}

bool PairWorld::is_led_by_one() const {
  const bool synced = session_.stage == Stage::kSynced && !session_.is_cut;
  return synced && sides_[0].leads != sides_[1].leads;
}

// It has voted for a term that has decided something else, and lost this agent's job: what a vote
// was for can't be taken back.
bool PairWorld::is_cut_off(const Agent& agent) const {
  const std::string& follows = agent.follows.follows();
  if (dead_terms_.contains(follows)) return true;
  return std::ranges::any_of(sides_, [&](const Side& side) {
    return side.leads && side.may_have_decided && side.term.term.id == follows &&
           !side.won.contains(agent.job);
  });
}

// All are there and hear each other from now on.
void PairWorld::settle() {
  tell(0, "and the other one find peace");
  has_faults_ = false;
  for (int side = 0; side < 2; ++side) {
    if (!sides_[side].is_up) start(side);
  }
  const auto go_on = [this](int num_turns) {
    for (int i = 0; i < num_turns && !violation_; ++i) {
      for (int side = 0; side < 2; ++side) {
        notice(side);
        call(side);
        act(side);
      }
      go_on_mirroring();
      for (int k = 0; k < 20; ++k) agent_turn();
    }
  };
  go_on(30);
  // Jobs that are over are forgotten after a while.
  for (int side = 0; side < 2; ++side) {
    for (const std::uint64_t job : jobs_in(sides_[side].rows)) {
      const Side& it = sides_[side];
      if (it.leads && it.won.contains(job) && is_over_in(it.rows, job)) end_job(side, job);
    }
  }
  go_on(100);
  // Every job that is not over is somewhere, and all its agents are there.
  for (const auto& [name, agent] : agents_) {
    if (violation_ || ended_.contains(agent.job)) continue;
    if (!agent.is_welcome && !is_cut_off(agent)) {
      violate(concat("agent ", name, " is nowhere"));
    }
  }
  // Two that have jobs each lead on, until they are over, and none is held any more.
  for (std::uint64_t job = 1; job <= 2; ++job) {
    for (int side = 0; side < 2; ++side) {
      for (int i = 0; i < 2; ++i) {
        if (sides_[side].leads && sides_[side].won.contains(job)) end_job(side, job);
      }
    }
  }
  go_on(20);
  for (const auto& [name, agent] : agents_) may_be_lost_.insert(agent.job);
  now_ += 2 * kMostTime;
  pass({});
  go_on(60);
  if (!violation_ && !is_led_by_one()) violate("no one leads, mirrored by the other one");
}

}  // namespace ddprun::ha::testing
