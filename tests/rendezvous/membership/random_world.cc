// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/random_world.h"

#include <algorithm>
#include <utility>

#include "rendezvous/journal/row.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/message_facts.h"

namespace ddprun::membership::testing {
namespace {

constexpr int kMaxDrainTicks = 300;

}  // namespace

RandomWorld::RandomWorld(std::uint64_t seed, Options options)
    : options_(options), state_(seed * 0x9E3779B97F4A7C15ULL + 1), table_(make_table()) {
  // Not drawn: the worlds stay what they were without it.
  if (seed % 10 < 3) timeouts_.replacement = std::chrono::milliseconds(seed * 7919 % 30'000);
  settings_.min_nodes = 1 + static_cast<int>(random(3));
  settings_.max_nodes = settings_.min_nodes + static_cast<int>(chance(20) ? random(2) : 0);
  settings_.max_restarts = static_cast<int>(random(4));
  settings_.max_node_losses = static_cast<int>(random(4));
  if (chance(40)) settings_.exclude_after = 1 + static_cast<int>(random(3));
  if (chance(40)) settings_.no_progress_restarts = 1 + static_cast<int>(random(3));
  settings_.max_preemptions = static_cast<int>(random(3));
  settings_.restart_on_join = chance(30);
  if (chance(40)) settings_.spares = 1 + static_cast<int>(random(2));
  // Not drawn: a job of one node has room for others in most worlds, in the rest they are refused.
  if (settings_.max_nodes == 1 && seed % 4 != 0) settings_.spares = static_cast<int>(kMaxAgents);
  if (chance(40)) {
    timeouts_.last_call = std::chrono::milliseconds(random(2'000));
    timeouts_.keep_alive = std::chrono::milliseconds(100 + random(20'000));
    timeouts_.stop_grace = std::chrono::milliseconds(random(2'000));
    timeouts_.max_restart_delay = std::chrono::milliseconds(random(60'000));
  }
  settings_.hang_action = static_cast<HangAction>(random(4));
  if (chance(15)) settings_.rdzv_backend = kStaticBackend;
}

std::uint64_t RandomWorld::random(std::uint64_t below) {  // splitmix64
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return (z ^ (z >> 31)) % below;
}

std::optional<std::string> RandomWorld::run() {
  for (event_number_ = 0; event_number_ < options_.num_events && !violation_; ++event_number_) {
    // Not drawn where there are none: those worlds stay what they were.
    if (options_.percent_of_restarts > 0 && chance(options_.percent_of_restarts)) {
      restarts_in_next_step_ = chance(50);
      if (!restarts_in_next_step_) restart_rendezvous();
    }
    random_event();
    if (std::exchange(restarts_in_next_step_, false)) restart_rendezvous();
    look_at_ranks();
  }
  if (!violation_) drain();
  return violation_;
}

std::unique_ptr<JobTable> RandomWorld::make_table() {
  MachineOptions options;
  options.journalled = options_.percent_of_restarts > 0;
  options.keep_finished = options_.keep_finished;
  return std::make_unique<JobTable>(
      options, [this] { return "session-" + std::to_string(++num_sessions_); });
}

// All connections end; what was said after the last batch was kept, or was never said.
void RandomWorld::restart_rendezvous() {
  ++num_restarts_;
  for (Agent& agent : agents_) agent.connection.reset();
  by_connection_.clear();
  const std::string before = kept_text();
  table_ = make_table();
  for (const Action& action : table_->restore(journal_, Clock::duration::zero(), now_)) {
    const auto* log = std::get_if<action::Log>(&action);
    if (log != nullptr && log->level == LogLevel::kError) violated(log->text);
  }
  keep(table_->take_changes());
  if (kept_text() != before) violated(concat("was ", before, " before, and after ", kept_text()));
  check_jobs();
}

void RandomWorld::keep(const journal::Batch& batch) {
  journal::apply_batch(batch, journal_);
  check_kept();
}

void RandomWorld::step(const Event& event) {
  Event given = event;
  std::string stale_type, before;
  if (auto* message = std::get_if<event::Message>(&given)) {
    const auto found = by_connection_.find(message->connection);
    std::uint64_t* round = round_of(message->envelope.message);
    if (round != nullptr && found != by_connection_.end()) {
      const std::uint64_t live = round_of_job_[found->second->run_id];
      if (*round != live) {
        stale_type = type_of(message->envelope.message);
        before = status_text();
      }
      if (options_.accepted_when_stale == type_of(message->envelope.message)) *round = live;
    }
    if (std::holds_alternative<Tail>(message->envelope.message)) {  // never changes anything
      stale_type = type_of(message->envelope.message);
      before = status_text();
    }
  }
  const Actions actions = table_->step(given, now_);
  if (options_.percent_of_restarts > 0) keep(table_->take_changes());
  take_back_exclusions();
  if (!stale_type.empty()) check_ignored(stale_type, before, actions);
  if (const auto* message = std::get_if<event::Message>(&given)) check_tail(*message, actions);
  std::vector<std::vector<StartRound>> starts;  // of each round that begins in this step
  std::vector<std::vector<std::pair<StartRound, std::string>>> of_roles;  // likewise
  std::vector<ConnectionId> closed;
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<action::Send>(&action)) {
      const auto found = by_connection_.find(send->connection);
      const bool arrives = found != by_connection_.end() && !restarts_in_next_step_;
      if (arrives) receive(*found->second, send->envelope);
      const auto* start = std::get_if<StartRound>(&send->envelope.message);
      if (start != nullptr && !starts.empty()) {
        starts.back().push_back(*start);
        if (found != by_connection_.end())
          of_roles.back().emplace_back(*start, found->second->role);
      }
    } else if (const auto* close = std::get_if<action::Close>(&action)) {
      closed.push_back(close->connection);
    } else if (const auto* round = std::get_if<action::RoundStarted>(&action)) {
      round_of_job_[round->run_id] = round->round;
      if (round->round == 1) excluded_[round->run_id].clear();  // another job of this id
      starts.emplace_back();
      of_roles.emplace_back();
      ++num_rounds_;
    } else if (std::get_if<action::JobOver>(&action) != nullptr) {
      ++num_ends_;
    }
  }
  for (const auto& round : starts) check_ranks(round);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (of_roles[i].size() == starts[i].size()) check_roles(std::move(of_roles[i]));
  }
  check_jobs();
  if (restarts_in_next_step_) return;
  for (const ConnectionId id : closed) {
    const auto found = by_connection_.find(id);
    if (found != by_connection_.end()) {
      if (found->second->connection == id) found->second->connection.reset();
      by_connection_.erase(found);
    }
    step(event::Closed{id});
  }
}

void RandomWorld::receive(Agent& agent, const RendezvousEnvelope& envelope) {
  switch (agent.channel.receive(envelope.seq, envelope.ack)) {
    case Arrival::kGap:
      if (!agent.is_liar) violated("the rendezvous skipped a message");
      return;
    case Arrival::kDuplicate:
      return;
    case Arrival::kNew:
      break;
  }
  if (const auto* welcome = std::get_if<Welcome>(&envelope.message)) {
    agent.session = welcome->session;
  } else if (const auto* start = std::get_if<StartRound>(&envelope.message)) {
    if (agent.live_round != 0 && !agent.is_liar) {
      violated(concat("round ", start->round, " starts on ", agent.name, " where round ",
                      agent.live_round, " lives"));
    }
    if (excluded_[agent.run_id].count(concat(agent.name, " (", agent.addr, ")")) != 0) {
      violated(concat("round ", start->round, " starts on ", agent.name, ", which is excluded"));
    }
    agent.live_round = start->round;
    agent.asked_to_stop = false;
    agent.leaves_by.reset();
  } else if (const auto* preempt = std::get_if<Preempt>(&envelope.message)) {
    if (preempt->round == agent.live_round) agent.leaves_by = now_ + preempt->notice;
  } else if (const auto* stop = std::get_if<StopRound>(&envelope.message)) {
    if (stop->round == agent.live_round) agent.asked_to_stop = true;
  } else if (const auto* inspect = std::get_if<Inspect>(&envelope.message)) {
    check_live_round(agent, inspect->round, "inspect");
    agent.asked_to_inspect |= inspect->round == agent.live_round;
    agent.inquiry = inspect->inquiry;
  } else if (const auto* record = std::get_if<Record>(&envelope.message)) {
    check_live_round(agent, record->round, "record");
  } else if (const auto* verdict = std::get_if<HangVerdict>(&envelope.message)) {
    check_live_round(agent, verdict->round, "hang_verdict");
  } else if (std::get_if<JobEnd>(&envelope.message) != nullptr ||
             std::get_if<Refused>(&envelope.message) != nullptr) {
    const auto* end = std::get_if<JobEnd>(&envelope.message);
    if (end != nullptr && end->reason.find(kStale) != std::string::npos) {
      violated("a message of another round ended the job");
    }
    agent.live_round = 0;
    const auto* refused = std::get_if<Refused>(&envelope.message);
    if (refused != nullptr && refused->message.find("is in use by") != std::string::npos) {
      agent.instance += "+";  // started again later, there may be a place for it then
      return;
    }
    agent.ended = true;
    if (chance(80) && agent.connection && envelope.seq != 0) {
      step(event::Message{*agent.connection, agent.channel.plain(Ack{}), {}});
    }
  }
}

void RandomWorld::pass_time() {
  const auto next = table_->next_deadline();
  const bool jump = next && chance(50);
  now_ = jump ? std::max(now_, *next)
              : now_ + std::chrono::milliseconds(random(chance(80) ? 200 : 20'000));
  if (next && *next <= now_) step(event::Tick{});
}

// Nobody says anything any more: only deadlines can end the waits.
void RandomWorld::drain() {
  for (int i = 0; i < kMaxDrainTicks && !table_->idle() && !violation_; ++i) {
    const auto next = table_->next_deadline();
    if (!next) {
      violated("a job waits without a deadline");
      return;
    }
    now_ = std::max(now_, *next);
    step(event::Tick{});
  }
  if (!table_->idle()) violated("a job did not end though all its deadlines passed");
  while (const auto next = table_->next_deadline()) {  // those that are over are forgotten
    if (table_->finished().size() == 0) return violated("it waits, and there is no job");
    now_ = std::max(now_, *next);
    step(event::Tick{});
    if (violation_) return;
  }
  for (const Agent& agent : agents_) {
    if (agent.connection && !agent.ended && !agent.is_liar)
      violated(agent.name + " was never told the end");
  }
}

}  // namespace ddprun::membership::testing
