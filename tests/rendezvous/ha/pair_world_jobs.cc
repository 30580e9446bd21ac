// SPDX-License-Identifier: Apache-2.0
// The half of PairWorld about jobs: who wins them, what is decided, whom agents follow.
#include <algorithm>

#include "rendezvous/membership/job_rows.h"
#include "rendezvous/membership/voters.h"
#include "tests/rendezvous/ha/pair_world.h"
#include "tests/rendezvous/membership/job_rows_of.h"

namespace ddprun::ha::testing {

using membership::HeldJobs;
using membership::job_row_prefix;

namespace {

std::string session_in(const membership::event::Message& join) {
  return std::get<membership::Join>(join.envelope.message).session;
}

}  // namespace

void PairWorld::begin_jobs() {
  Side& side = sides_[0];
  for (std::uint64_t job = 1; job <= 2; ++job) {
    const int num_agents = pick(1, 4);
    for (int i = 0; i < num_agents; ++i) {
      Agent& agent = agents_[concat(job, static_cast<char>('a' + i))];
      agent.job = job;
      agent.follows.welcomed(side.term.term.id);
    }
    parents_[++last_decision_] = 0;
    const journal::Rows rows = job_rows(job, last_decision_, false);
    side.rows.insert(rows.begin(), rows.end());
    side.won.insert(job);
    last_said_[job] = last_decision_;
  }
  side.may_have_decided = true;
}

journal::Rows PairWorld::job_rows(std::uint64_t job, Decision round, bool is_over) const {
  // Other nodes are members each time, so that others have a vote.
  std::vector<std::string> members, spares;
  for (const auto& [name, agent] : agents_) {
    if (agent.job != job) continue;
    const bool is_member =
        ((round * 0x9e3779b97f4a7c15U) >> (60 - spares.size() - members.size())) & 1U;
    (is_member ? members : spares).push_back(name);
  }
  if (members.empty()) std::swap(members, spares);
  membership::JobState state = membership::testing::job_state(round, members, spares);
  state.run_id = concat("job ", job);
  if (is_over) {
    state.verdict = membership::JobEnd();
    state.phase = membership::JobPhase::kEnded;
  }
  return membership::testing::rows_of(std::move(state), job);
}

static std::optional<membership::JobState> job_in(const journal::Rows& rows, std::uint64_t job) {
  const auto jobs = membership::rows_by_job(rows);
  const auto found = jobs.find(job);
  if (found == jobs.end()) return std::nullopt;
  return membership::read_job(found->second, {});
}

PairWorld::Decision PairWorld::decision_in(const journal::Rows& rows, std::uint64_t job) const {
  const auto state = job_in(rows, job);
  return state ? state->round : 0;
}

bool PairWorld::is_over_in(const journal::Rows& rows, std::uint64_t job) const {
  const auto state = job_in(rows, job);
  return state && state->verdict;
}

std::vector<std::uint64_t> PairWorld::jobs_in(const journal::Rows& rows) const {
  std::vector<std::uint64_t> jobs;
  for (const auto& [number, of_job] : membership::rows_by_job(rows)) jobs.push_back(number);
  return jobs;
}

void PairWorld::pass(std::chrono::milliseconds time) {
  if (has_faults_ && now_ + time > Clock::time_point(std::chrono::hours(1)) + kMostTime) return;
  now_ += time;
  for (int side = 0; side < 2; ++side) {
    const auto& held = sides_[side].held;
    if (!held) continue;
    const auto due = held->next_deadline();
    if (due && *due <= now_) feed(side, membership::event::Tick{});
  }
}

// ---- held jobs ----

void PairWorld::feed(int side, const membership::Event& event) {
  Side& it = sides_[side];
  if (!it.is_up || !it.leads) return;
  if (!it.held) {
    const auto* message = std::get_if<membership::event::Message>(&event);
    if (message != nullptr) answer(side, *message);
    return;
  }
  const HeldJobs::Outcome outcome = it.held->step(event, now_);
  const bool passes = outcome.passes;
  take(side, outcome);
  const auto* message = std::get_if<membership::event::Message>(&event);
  if (passes && message != nullptr && it.leads && it.is_up) answer(side, *message);
}

void PairWorld::take(int side, const HeldJobs::Outcome& outcome) {
  Side& it = sides_[side];
  std::set<std::uint64_t> restored;
  journal::Rows rows;
  for (const auto& each : outcome.restored) rows.insert(each.rows.begin(), each.rows.end());
  for (const std::uint64_t job : jobs_in(rows)) restored.insert(job);
  if (!commit(side, outcome.changes)) return;
  for (const auto& action : outcome.actions) {
    if (const auto* send = std::get_if<membership::action::Send>(&action)) {
      if (Agent* agent = agent_at(side, send->connection)) {
        agent->inbox.push_back(send->envelope.message);
      }
    } else if (const auto* close = std::get_if<membership::action::Close>(&action)) {
      if (Agent* agent = agent_at(side, close->connection)) lose(*agent);
    }
  }
  for (const std::uint64_t job : restored) {
    it.won.insert(job);
    const Decision decision = decision_in(rows, job);
    if (is_over_in(rows, job)) {  // nobody is asked for it
      ended_.insert(job);
      continue;
    }
    it.may_have_decided = true;
    ++seen_.wins;
    tell(side, concat("wins job ", job));
    say(side, job, decision);
  }
  for (const auto& join : outcome.joins) {
    if (it.leads && it.is_up) answer(side, join);
  }
}

// A Join at the job table.
void PairWorld::answer(int side, const membership::event::Message& join) {
  if (!std::holds_alternative<membership::Join>(join.envelope.message)) return;
  Agent* agent = agent_at(side, join.connection);
  if (agent == nullptr) return;
  Side& it = sides_[side];
  const bool is_known = it.won.contains(agent->job) && decision_in(it.rows, agent->job) > 0;
  if (!commit(side, {}) || agent_at(side, join.connection) == nullptr) return;
  if (is_known && is_over_in(it.rows, agent->job)) {
    agent->is_done = agent->follows.allows(it.term.term.id);
    return lose(*agent);
  }
  if (is_known) {
    membership::Welcome welcome;
    welcome.session = session_in(join);
    welcome.term = it.term.term.id;
    agent->inbox.emplace_back(welcome);
    return;
  }
  // Refused: for good by whom it follows, or where it follows nobody.
  const bool is_foreign = !agent->follows.allows(it.term.term.id);
  if (!is_foreign && !ended_.contains(agent->job) && !may_be_lost_.contains(agent->job)) {
    violate(concat(it.term.term.id, " refused an agent of job ", agent->job));
  }
  agent->is_done = !is_foreign;
  lose(*agent);
}

PairWorld::Agent* PairWorld::agent_at(int side, membership::ConnectionId connection) {
  for (auto& [name, agent] : agents_) {
    if (agent.at == side && agent.connection == connection) return &agent;
  }
  return nullptr;
}

// ---- decisions ----

// All that is said of a job is one line of decisions, whoever says it.
void PairWorld::say(int side, std::uint64_t job, Decision decision) {
  Decision& last = last_said_[job];
  Decision known = decision;
  while (known > last) known = parents_.at(known);
  if (known != last) {
    violate(concat(sides_[side].term.term.id, " says decision ", decision, " of job ", job,
                   " without knowing of ", last));
  }
  last = std::max(last, decision);
}

void PairWorld::decide_job(int side, std::uint64_t job) {
  Side& it = sides_[side];
  const Decision decision = ++last_decision_;
  const Decision parent = decision_in(it.rows, job);
  if (parent == 0 || is_over_in(it.rows, job)) return;
  parents_[decision] = parent;
  journal::Batch batch;
  for (const auto& [key, content] : job_rows(job, decision, false)) batch.push_back({key, content});
  it.may_have_decided = true;
  if (!commit(side, batch)) return;
  tell(side, concat("decides ", decision, " of job ", job));
  say(side, job, decision);
}

void PairWorld::end_job(int side, std::uint64_t job) {
  Side& it = sides_[side];
  const Decision parent = decision_in(it.rows, job);
  if (parent == 0) return;
  journal::Batch batch;
  if (is_over_in(it.rows, job)) {  // forgotten
    const std::string prefix = job_row_prefix(job);
    for (const auto& [key, content] : it.rows) {
      if (key.starts_with(prefix)) batch.push_back({key, std::nullopt});
    }
    if (commit(side, batch)) it.won.erase(job);
    return;
  }
  const Decision decision = ++last_decision_;
  parents_[decision] = parent;
  for (const auto& [key, content] : job_rows(job, decision, true)) batch.push_back({key, content});
  it.may_have_decided = true;
  if (!commit(side, batch)) return;
  tell(side, concat("ends job ", job));
  say(side, job, decision);
  ended_.insert(job);
  ++seen_.ended;
  for (auto& [name, agent] : agents_) {
    const bool is_told = agent.job == job && agent.at == side && agent.is_welcome;
    if (!is_told || (has_faults_ && chance(40))) continue;
    agent.is_done = true;
    lose(agent);
  }
}

// ---- agents ----

void PairWorld::agent_turn() {
  const auto chosen = std::next(agents_.begin(), pick(0, static_cast<int>(agents_.size()) - 1));
  Agent& agent = chosen->second;
  if (agent.is_done) return;
  if (!agent.at) return join(chosen->first, agent, pick(0, 1));
  if (has_faults_ && chance(6)) {
    const int side = *agent.at;
    const membership::ConnectionId connection = agent.connection;
    lose(agent);
    return feed(side, membership::event::Closed{connection});
  }
  if (!agent.inbox.empty() && chance(60)) {
    const membership::RendezvousMessage message = std::move(agent.inbox.front());
    agent.inbox.pop_front();
    return hear(agent, message);
  }
  if (agent.outbox.empty()) return;
  const membership::event::Message message{
      agent.connection, {0, 0, std::move(agent.outbox.front())}, {}};
  agent.outbox.pop_front();
  feed(*agent.at, message);
}

void PairWorld::join(const std::string& name, Agent& agent, int side) {
  if (!sides_[side].is_up || !sides_[side].leads) return;
  membership::Join join;
  join.run_id = concat("job ", agent.job);
  join.instance = "instance of " + name;
  join.session = name;
  agent.at = side;
  agent.connection = ++last_connection_;
  feed(side, membership::event::Message{agent.connection, {0, 0, std::move(join)}, {}});
}

void PairWorld::hear(Agent& agent, const membership::RendezvousMessage& message) {
  if (const auto* claim = std::get_if<membership::Claim>(&message)) {
    const bool is_granted = agent.follows.claim(*claim);
    tell(*agent.at, concat(is_granted ? "gets the vote of one of job " : "is denied by one of job ",
                           agent.job));
    agent.outbox.emplace_back(membership::Vote{claim->term, is_granted, agent.follows.follows()});
  } else if (const auto* welcome = std::get_if<membership::Welcome>(&message)) {
    if (!agent.follows.allows(welcome->term)) return lose(agent);
    agent.follows.welcomed(welcome->term);
    agent.is_welcome = true;
  }
}

void PairWorld::lose(Agent& agent) {
  agent.at.reset();
  agent.is_welcome = false;
  agent.inbox.clear();
  agent.outbox.clear();
}

}  // namespace ddprun::ha::testing
