// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/random_world.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace ddprun::membership::testing {
namespace {

constexpr int kMaxDrainTicks = 300;

}  // namespace

RandomWorld::RandomWorld(std::uint64_t seed, Options options)
    : options_(options),
      random_(seed),
      rendezvous_({options.percent_of_restarts > 0, options.keep_finished, true, options.bug,
                   [this](const std::string& what) { violated(what); }}) {
  // This isn't drawn, so the other draws stay the same.
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
  // This isn't drawn. In most worlds a job of one node has room for others; in the rest they are
  // refused.
  if (settings_.max_nodes == 1 && seed % 4 != 0) settings_.spares = static_cast<int>(kMaxAgents);
  if (chance(40)) {
    timeouts_.last_call = std::chrono::milliseconds(random(2'000));
    timeouts_.keep_alive = std::chrono::milliseconds(100 + random(20'000));
    timeouts_.shutdown = std::chrono::milliseconds(random(2'000));
    timeouts_.max_restart_delay = std::chrono::milliseconds(random(60'000));
  }
  settings_.hang_action = static_cast<HangAction>(random(4));
  if (chance(15)) settings_.rdzv_backend = kStaticBackend;
}

std::optional<std::string> RandomWorld::run() {
  for (event_number_ = 0; event_number_ < options_.num_events && !violation_; ++event_number_) {
    // This is drawn only if there are restarts, so that worlds without them stay the same.
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

// All connections end. Everything said after the last batch was either kept or not said.
void RandomWorld::restart_rendezvous() {
  ++num_restarts_;
  for (Agent& agent : agents_) agent.connection.reset();
  by_connection_.clear();
  rendezvous_.restart(now_);
  check_workers();
}

void RandomWorld::step(const Event& event) {
  std::vector<ConnectionId> closed;
  for (const Action& action : rendezvous_.step(event, now_)) {
    if (const auto* send = variants::get_if<action::Send>(&action)) {
      const auto found = by_connection_.find(send->connection);
      const bool arrives = found != by_connection_.end() && !restarts_in_next_step_;
      if (arrives) receive(*found->second, send->envelope);
    } else if (const auto* close = variants::get_if<action::Close>(&action)) {
      closed.push_back(close->connection);
    } else if (variants::holds_alternative<action::RoundStarted>(action)) {
      ++num_rounds_;
    } else if (variants::holds_alternative<action::JobOver>(action)) {
      ++num_ends_;
    } else if (variants::holds_alternative<action::TailSaid>(action)) {
      ++num_tails_;
    }
  }
  check_workers();
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
  if (const auto* welcome = variants::get_if<Welcome>(&envelope.message)) {
    agent.session = welcome->session;
  } else if (const auto* start = variants::get_if<StartRound>(&envelope.message)) {
    if (agent.live_round != 0 && !agent.is_liar) {
      violated(concat("round ", start->round, " starts on ", agent.name, " where round ",
                      agent.live_round, " lives"));
    }
    agent.live_round = start->round;
    agent.asked_to_stop = false;
    agent.leaves_by.reset();
  } else if (const auto* preempt = variants::get_if<Preempt>(&envelope.message)) {
    if (preempt->round == agent.live_round) agent.leaves_by = now_ + preempt->notice;
  } else if (const auto* stop = variants::get_if<StopRound>(&envelope.message)) {
    if (stop->round == agent.live_round) agent.asked_to_stop = true;
  } else if (const auto* inspect = variants::get_if<Inspect>(&envelope.message)) {
    check_live_round(agent, inspect->round, "inspect");
    agent.asked_to_inspect |= inspect->round == agent.live_round;
    agent.inquiry = inspect->inquiry;
  } else if (const auto* record = variants::get_if<Record>(&envelope.message)) {
    check_live_round(agent, record->round, "record");
  } else if (const auto* verdict = variants::get_if<HangVerdict>(&envelope.message)) {
    check_live_round(agent, verdict->round, "hang_verdict");
  } else if (variants::get_if<JobEnd>(&envelope.message) != nullptr ||
             variants::get_if<Refused>(&envelope.message) != nullptr) {
    const auto* end = variants::get_if<JobEnd>(&envelope.message);
    if (end != nullptr && end->reason.find(kStale) != std::string::npos) {
      violated("a message of another round ended the job");
    }
    agent.live_round = 0;
    const auto* refused = variants::get_if<Refused>(&envelope.message);
    if (refused != nullptr && refused->message.find("is in use by") != std::string::npos) {
      agent.instance += "+";  // if it is started again later, there may be a place for it
      return;
    }
    agent.ended = true;
    if (chance(80) && agent.connection && envelope.seq != 0) {
      step(event::Message{*agent.connection, agent.channel.plain(Ack{}), {}});
    }
  }
}

void RandomWorld::pass_time() {
  const auto next = rendezvous_.next_deadline();
  const bool jump = next && chance(50);
  now_ = jump ? std::max(now_, *next)
              : now_ + std::chrono::milliseconds(random(chance(80) ? 200 : 20'000));
  if (next && *next <= now_) step(event::Tick{});
}

// From now on nobody says anything: only deadlines can end the waits.
void RandomWorld::drain() {
  for (int i = 0; i < kMaxDrainTicks && !rendezvous_.table().idle() && !violation_; ++i) {
    const auto next = rendezvous_.next_deadline();
    if (!next) {
      violated("a job waits without a deadline");
      return;
    }
    now_ = std::max(now_, *next);
    step(event::Tick{});
  }
  if (!rendezvous_.table().idle()) violated("a job did not end though all its deadlines passed");
  while (const auto next = rendezvous_.next_deadline()) {  // jobs that are over are forgotten
    if (rendezvous_.table().finished().size() == 0)
      return violated("it waits, and there is no job");
    now_ = std::max(now_, *next);
    step(event::Tick{});
    if (violation_) return;
  }
  for (const Agent& agent : agents_) {
    if (agent.connection && !agent.ended && !agent.is_liar)
      violated(agent.name + " was never told the end");
  }
}

void RandomWorld::violated(const std::string& what) {
  if (!violation_) violation_ = concat("event ", event_number_, ": ", what);
}

// Pushed messages come in order, so they are about the live workers.
void RandomWorld::check_live_round(const Agent& agent, std::uint64_t round, const char* what) {
  if (agent.is_liar || agent.live_round == 0 || agent.live_round == round) return;
  violated(concat(what, " names round ", round, " on ", agent.name, " where round ",
                  agent.live_round, " lives"));
}

void RandomWorld::check_workers() {
  for (const JobStatus& job : rendezvous_.table().status()) {
    if (job.phase == "ended") continue;
    for (const NodeStatus& node : job.nodes) {
      const auto agent = std::find_if(agents_.begin(), agents_.end(),
                                      [&](const Agent& each) { return each.name == node.host; });
      if (agent->is_liar) continue;
      if (agent->leaves_by && agent->live_round == job.round && job.phase == "running" &&
          now_ > *agent->leaves_by) {
        violated(concat("round ", job.round, " runs on after a preemption's notice"));
      }
      if (agent->live_round != 0 && agent->live_round != job.round) {
        violated(
            concat("two live rounds: ", agent->live_round, " on ", node.host, " and ", job.round));
      }
    }
  }
}

}  // namespace ddprun::membership::testing
