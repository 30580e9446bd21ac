// SPDX-License-Identifier: Apache-2.0
// The actions and messages of a RandomWorld's agents.
#include <utility>

#include "common/text.h"
#include "tests/rendezvous/membership/world/random_world.h"

namespace ddprun::membership::testing {

void RandomWorld::random_event() {
  if (agents_.size() < kMaxAgents && (agents_.empty() || chance(15))) {
    Agent& agent = agents_.emplace_back();
    agent.name = concat("host", agents_.size());
    agent.addr = concat("10.0.0.", agents_.size());
    if (chance(50)) agent.topology = concat("pod", random(2), ".rack", random(2));
    agent.role = agents_.size() % 3 == 0 ? "evaluator" : "trainer";
    agent.instance = concat("instance", agents_.size());
    agent.run_id = chance(90) ? "job" : "other";
    agent.has_rank_wish = chance(20);
    agent.is_old = agents_.size() % 4 == 0;  // this isn't drawn either
    join(agent);
    return;
  }
  Agent& agent = agents_[random(agents_.size())];
  if (!agent.connection) {
    if (agent.ended || chance(30)) {
      pass_time();
    } else {
      if (agent.live_round == 0 && chance(10)) {  // ddprun was started again on that host
        agent.instance += "+";
        agent.session.clear();
        agent.channel = {};
        agent.last_sent = {};
      }
      join(agent);
    }
    return;
  }
  const auto dice = random(100);
  if (dice < 45) {
    say_something_true(agent);
  } else if (dice < 60) {
    say_something_stale(agent);
  } else if (dice < 65) {
    step(event::Message{*agent.connection, agent.last_sent, {}});  // this repeats an older message
  } else if (dice < 72) {
    if (chance(20)) step(event::Message{*agent.connection, agent.channel.plain(CutOff{}), {}});
    if (agent.connection) disconnect(agent);
  } else if (dice < 74) {
    say(agent, Leave{"a signal", 130, chance(50)});
  } else if (dice < 75) {
    AgentEnvelope nonsense = agent.last_sent;
    nonsense.seq = random(8);
    nonsense.ack = random(8);
    agent.is_liar = true;  // it doesn't know its channel's numbers any more
    step(event::Message{*agent.connection, nonsense, {}});
  } else if (dice < 85) {
    step(event::Heard{*agent.connection});
  } else {
    pass_time();
  }
}

void RandomWorld::join(Agent& agent) {
  const ConnectionId id = next_connection_++;
  if (agent.connection) by_connection_.erase(*agent.connection);
  agent.connection = id;
  by_connection_[id] = &agent;
  Join join;
  join.run_id = agent.run_id;
  if (agent.is_old) join.version = join.oldest_version = kTailVersion - 1;
  join.instance = agent.instance;
  join.settings = settings_;
  join.timeouts = timeouts_;
  join.topology = agent.topology;
  join.role = agent.role;
  if (chance(2)) join.settings.max_restarts += 1;
  join.session = agent.session;
  if (agent.has_rank_wish) {
    join.node_rank = static_cast<int>(random(static_cast<std::uint64_t>(settings_.max_nodes)));
  }
  join.num_workers = 1 + static_cast<int>(random(4));
  join.host = agent.name;
  join.store_port = 1000;
  join.user_id = agent.instance.back() == '6' ? 1 : 0;  // this isn't drawn either
  event::Message message;
  message.connection = id;
  message.envelope = agent.channel.plain(join);
  message.facts.peer_addr = agent.addr;
  message.facts.local_addr = "10.0.0.200";
  step(message);
}

void RandomWorld::say(Agent& agent, AgentMessage message) {
  const bool plain = variants::holds_alternative<Stalled>(message) ||
                     variants::holds_alternative<Inspection>(message) ||
                     variants::holds_alternative<StepTimes>(message);
  agent.last_sent = plain && chance(90) ? agent.channel.plain(std::move(message))
                                        : agent.channel.number(std::move(message));
  step(event::Message{*agent.connection, agent.last_sent, {}});
}

void RandomWorld::say_something_true(Agent& agent) {
  if (agent.live_round == 0) {
    step(event::Heard{*agent.connection});
  } else if (agent.asked_to_stop || chance(3)) {
    const std::uint64_t round = agent.live_round;
    agent.live_round = 0;
    say(agent, WorkersStopped{round, 1001, random(50)});
  } else if (chance(25)) {
    say_something_of_ranks(agent, agent.live_round, std::exchange(agent.asked_to_inspect, false));
  } else if (chance(40)) {
    say(agent, WorkersRunning{agent.live_round});
  } else if (chance(10)) {
    Preempted warning{Preempted::Kind::kNode, "got SIGUSR1",
                      std::chrono::milliseconds(random(9000))};
    if (chance(20)) warning.kind = Preempted::Kind::kTimeLimit;
    say(agent, warning);
  } else if (chance(agent.leaves_by ? 60 : 3)) {
    say(agent, WorkersLeft{agent.live_round});
  } else if (chance(20)) {
    say(agent, FirstStep{agent.live_round, random(50)});
  } else if (chance(5)) {
    say(agent, RecordsWanted{agent.live_round});
  } else if (chance(10)) {
    WorkerRequest request{agent.live_round, WorkerRequest::Kind::kExcludeNode, 0, "broken", 9};
    if (chance(30)) request.kind = WorkerRequest::Kind::kStopJob;
    if (request.kind == WorkerRequest::Kind::kExcludeNode && chance(30)) {
      request.global_rank = kAgentItself;
    }
    say(agent, request);
  } else if (chance(40)) {
    WorkerFailed failed{agent.live_round, {}};
    failed.failure.exit_code = static_cast<int>(random(3));
    if (chance(20)) {
      failed.failure.out_of_memory = "ran out: …";
      failed.failure.log_files = {"/l/stdout.log"};
      failed.failure.error_fields = chance(50) ? "{}" : "{";
    }
    if (chance(70)) {  // the number may be wrong
      const auto now =
          std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch());
      failed.failure.died_at_us =
          now.count() - 500'000 + static_cast<std::int64_t>(random(1'000'000));
      failed.failure.clock_error_us = static_cast<std::int64_t>(random(1000));
    }
    say(agent, failed);
  } else {
    say(agent, WorkersSucceeded{agent.live_round});
  }
}

// Stalls, asked and unasked inspections, and step times, about ranks that may not exist.
void RandomWorld::say_something_of_ranks(Agent& agent, std::uint64_t round, bool asked) {
  const auto rank = [&] {
    RankReport report;
    report.global_rank = static_cast<int>(random(9));
    report.foreign = chance(30);
    report.phase = chance(80) ? "train" : "checkpoint";
    report.step = random(3);
    report.collectives_begun = random(3);
    report.collectives_done = random(3);
    report.quiet = std::chrono::milliseconds(random(20'000));
    report.limit = std::chrono::milliseconds(random(10'000));
    report.limit_if_blocked = report.limit * (chance(50) ? 1 : 3);
    if (chance(60)) report.limit_if_working = report.limit * 2;
    report.activity = static_cast<RankActivity>(random(3));
    return report;
  };
  if (!asked && chance(30)) {
    say(agent, Stalled{round, rank()});
  } else if (asked || chance(80)) {
    Inspection inspection{round, chance(90) ? agent.inquiry : random(4), {}};
    for (std::uint64_t i = random(4); i > 0; --i) inspection.ranks.push_back(rank());
    say(agent, inspection);
  } else {
    StepTimes times{round, {}};
    times.ranks.push_back({static_cast<int>(random(9)), std::chrono::microseconds(9),
                           std::chrono::microseconds(random(90'000))});
    say(agent, times);
  }
}

void RandomWorld::say_something_stale(Agent& agent) {
  std::uint64_t round = random(agent.live_round + 3);
  if (round == agent.live_round) ++round;
  switch (random(8)) {
    case 5:
      say(agent, FirstStep{round, 1});
      break;
    case 6:
      if (chance(50)) return say(agent, RecordsWanted{round});
      say(agent, WorkersLeft{round});
      break;
    case 4:
      say_something_of_ranks(agent, round, false);
      break;
    case 0:
      say(agent, WorkersRunning{round});
      break;
    case 1:
      say(agent, WorkerFailed{round, {}});
      break;
    case 2:
      say(agent, WorkersSucceeded{round});
      break;
    case 3:
      say(agent, WorkerRequest{round, WorkerRequest::Kind::kStopJob, 0, kStale, 9});
      break;
    default:
      say(agent, WorkersStopped{round, 1002});
      break;
  }
}

void RandomWorld::disconnect(Agent& agent) {
  const ConnectionId id = *agent.connection;
  agent.connection.reset();
  by_connection_.erase(id);
  step(event::Closed{id});
}

}  // namespace ddprun::membership::testing
