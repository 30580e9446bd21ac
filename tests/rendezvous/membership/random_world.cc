// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/random_world.h"

#include <algorithm>
#include <utility>

#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/message_facts.h"

namespace ddprun::membership::testing {
namespace {

constexpr std::size_t kMaxAgents = 6;
constexpr int kMaxDrainTicks = 300;
constexpr char kStale[] = "stale";

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
  }
  if (!violation_) drain();
  return violation_;
}

void RandomWorld::violated(const std::string& what) {
  if (!violation_) violation_ = concat("event ", event_number_, ": ", what);
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
  for (const journal::RowChange& row : batch) {
    if (row.content) {
      journal_[row.key] = *row.content;
    } else {
      journal_.erase(row.key);
    }
  }
  const auto of_finished = std::ranges::count_if(
      journal_, [](const auto& row) { return row.first.starts_with("finished/"); });
  if (of_finished != static_cast<std::ptrdiff_t>(table_->finished().size())) {
    violated(concat("the journal has ", of_finished, " jobs that are over, the rendezvous ",
                    table_->finished().size()));
  }
  if (table_->idle() && journal_.size() > table_->finished().size()) {
    violated("the journal keeps row " + journal_.begin()->first + " of a job that is gone");
  }
}

// What a restart must not change.
std::string RandomWorld::kept_text() const {
  std::string text;
  for (const JobStatus& job : table_->status()) {
    text += concat(job.run_id, ' ', job.phase, ' ', job.round, ' ', job.failures, ' ',
                   job.node_losses, ' ', job.preemptions, ' ', job.preempting, ' ', job.idle_rounds,
                   ' ', job.verdict ? job.verdict->reason : "", ' ');
    for (const auto& [key, why] : job.excluded) text += concat(key, why, ' ');
    for (const NodeStatus& node : job.nodes) {
      text += concat(node.host, node.phase, node.node_rank.value_or(-1), ' ');
    }
    for (const RoundRecord& round : job.rounds) {
      text += concat(round.cause, round.seconds.running + round.seconds.lost(), ' ');
    }
    text += concat(job.settings.min_nodes, ' ', job.settings.max_nodes, '\n');
  }
  for (const FinishedJob& job : table_->finished().all()) {
    if (job.ended + options_.keep_finished <= now_) continue;  // due, and no Tick came yet
    text +=
        concat(job.run_id, ' ', job.exit_code, ' ', job.reason, ' ', job.rounds, ' ', job.failures,
               ' ', job.num_nodes, ' ', job.ended.time_since_epoch().count(), '\n');
  }
  return text;
}

// ---- what happens ----

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
    step(event::Message{*agent.connection, agent.last_sent, {}});  // a repetition
  } else if (dice < 72) {
    if (chance(20)) step(event::Message{*agent.connection, agent.channel.plain(CutOff{}), {}});
    if (agent.connection) disconnect(agent);
  } else if (dice < 74) {
    say(agent, Leave{"a signal", 130, chance(50)});
  } else if (dice < 75) {
    AgentEnvelope nonsense = agent.last_sent;
    nonsense.seq = random(8);
    nonsense.ack = random(8);
    agent.is_liar = true;  // the numbers of its channel are lost
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
  join.user_id = agent.instance.back() == '6' ? 1 : 0;  // not drawn, as above
  event::Message message;
  message.connection = id;
  message.envelope = agent.channel.plain(join);
  message.facts.peer_addr = agent.addr;
  message.facts.local_addr = "10.0.0.200";
  step(message);
}

void RandomWorld::say(Agent& agent, AgentMessage message) {
  const bool plain = std::holds_alternative<Stalled>(message) ||
                     std::holds_alternative<Inspection>(message) ||
                     std::holds_alternative<StepTimes>(message);
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
    if (chance(70)) {  // true or not
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

// Stalled, an inspection asked for or not, step times: about ranks that may not exist.
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

// ---- what the machine does about it ----

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
  }
  const Actions actions = table_->step(given, now_);
  if (options_.percent_of_restarts > 0) keep(table_->take_changes());
  take_back_exclusions();
  if (!stale_type.empty()) check_ignored(stale_type, before, actions);
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

// What turns out not to have been the first failure excludes nobody; that is known before the round
// is stopped, or never.
void RandomWorld::take_back_exclusions() {
  if (stopping_.empty()) return;
  for (const JobStatus& job : table_->status()) {
    if (stopping_.count(job.run_id) == 0) continue;
    std::erase_if(excluded_[job.run_id],
                  [&](const std::string& key) { return job.excluded.count(key) == 0; });
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

void RandomWorld::check_ignored(const std::string& type, const std::string& before,
                                const Actions& actions) {
  // Its number may be wrong (then it ends the connection), or it may confirm the job's end.
  const bool closes = std::any_of(actions.begin(), actions.end(), [](const Action& each) {
    return std::holds_alternative<action::Close>(each);
  });
  if (closes || before.find("ended") != std::string::npos) return;
  const bool says_nothing = std::all_of(actions.begin(), actions.end(), [](const Action& each) {
    return std::holds_alternative<action::Log>(each);
  });
  if (!says_nothing) violated("something was said because of a stale " + type);
  if (status_text() != before) violated("a stale " + type + " changed the job");
}

std::string RandomWorld::status_text() const {
  std::string text;
  for (const JobStatus& job : table_->status()) {
    text += concat(job.run_id, ' ', job.phase, ' ', job.round, ' ', job.failures, ' ',
                   job.node_losses, ' ', job.preemptions, ' ', job.preempting, ' ', job.idle_rounds,
                   ' ', job.excluded.size(), ' ', job.hang ? job.hang->text : "", ' ');
    for (const std::string& straggler : job.stragglers) text += straggler;
    for (const NodeStatus& node : job.nodes) text += concat(node.host, node.phase, ' ');
    for (const RoundRecord& round : job.rounds) text += concat(round.seconds.first_step, ' ');
  }
  return text;
}

// What is pushed in order, while the workers live, speaks of them.
void RandomWorld::check_live_round(const Agent& agent, std::uint64_t round, const char* what) {
  if (agent.is_liar || agent.live_round == 0 || agent.live_round == round) return;
  violated(concat(what, " names round ", round, " on ", agent.name, " where round ",
                  agent.live_round, " lives"));
}

// One round costs one node loss at most; no second of it is in two phases.
void RandomWorld::check_costs(const JobStatus& job) {
  if (job.node_losses > static_cast<int>(job.round)) {
    violated(concat("rounds: ", job.round, ", but node losses: ", job.node_losses));
  }
  double sum = 0;
  for (const RoundRecord& record : job.rounds) {
    const PhaseSeconds& s = record.seconds;
    for (const double phase :
         {s.rendezvous, s.spawn, s.first_step, s.running, s.redone, s.detect, s.stop}) {
      if (phase < -1e-6) violated("a phase of a round lasted for less than no time");
    }
    sum += s.running + s.lost();
  }
  const double elapsed = std::chrono::duration<double>(now_ - began_).count();
  if (sum > elapsed + 1e-6) violated(concat("phases of ", sum, " s in ", elapsed, " s"));
}

void RandomWorld::check_roles(std::vector<std::pair<StartRound, std::string>> starts) {
  std::sort(starts.begin(), starts.end(),
            [](const auto& a, const auto& b) { return a.first.node_rank < b.first.node_rank; });
  std::map<std::string, int> next_rank, sizes;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto& [start, role] = starts[i];
    const int end =
        i + 1 < starts.size() ? starts[i + 1].first.first_global_rank : start.world_size;
    if (start.first_role_rank != next_rank[role]) violated("a rank in a role is wrong");
    next_rank[role] += end - start.first_global_rank;
    sizes.emplace(role, start.role_world_size);
  }
  for (const auto& [role, size] : sizes) {
    if (size != next_rank[role]) violated("the size of a role is wrong");
  }
}

void RandomWorld::check_ranks(const std::vector<StartRound>& starts) {
  std::set<int> node_ranks, first_ranks;
  for (const StartRound& start : starts) {
    node_ranks.insert(start.node_rank);
    first_ranks.insert(start.first_global_rank);
    if (start.round != starts.front().round || start.world_size != starts.front().world_size) {
      violated("nodes were told different rounds");
    }
    if (start.restart_count + 1 != static_cast<int>(start.round)) {
      violated("restart count is not round - 1");
    }
    if (start.num_nodes != static_cast<int>(starts.size())) violated("a rank is missing");
  }
  if (node_ranks.size() != starts.size() || first_ranks.size() != starts.size() ||
      *node_ranks.begin() != 0 || *node_ranks.rbegin() + 1 != static_cast<int>(starts.size()) ||
      *first_ranks.begin() != 0) {
    violated("ranks are not each given exactly once");
  }
  const int nodes = static_cast<int>(starts.size());
  if (nodes < settings_.min_nodes || nodes > settings_.max_nodes) {
    violated("a round has too few or too many nodes");
  }
}

void RandomWorld::check_jobs() {
  if (!table_->idle() && !table_->next_deadline()) violated("a job waits without a deadline");
  std::erase_if(excluded_, [jobs = table_->status()](const auto& entry) {
    return std::none_of(jobs.begin(), jobs.end(), [&](const JobStatus& job) {
      return job.run_id == entry.first;  // forgotten: a later job of this id knows nothing of it
    });
  });
  stopping_.clear();
  for (const JobStatus& job : table_->status()) {
    if (job.phase == "stopping") stopping_.insert(job.run_id);
    if (job.failures > job.settings.max_restarts + 1) violated("the restart budget was exceeded");
    if (job.phase == "running" && job.failures > job.settings.max_restarts) {
      violated("a round runs beyond the restart budget");
    }
    if (job.phase == "running" && job.preemptions > job.settings.max_preemptions) {
      violated("a round runs beyond the budget of preemptions");
    }
    if (job.phase != "running" && !job.preempting.empty()) {
      violated("a preemption is pending without a live round");
    }
    const int idle_limit = job.settings.no_progress_restarts;
    if (job.phase == "running" && idle_limit > 0 && job.idle_rounds >= idle_limit) {
      violated("a round runs though the ones before brought no progress");
    }
    check_costs(job);
    for (const auto& [key, why] : job.excluded) {
      if (!job.verdict) excluded_[job.run_id].insert(key);
    }
    if (job.verdict) excluded_.erase(job.run_id);  // a later job of this id knows nothing of it
    if (job.phase == "running" && job.node_losses > job.settings.max_node_losses) {
      violated("a round runs beyond the budget of node losses");
    }
    if (job.phase == "ended") continue;
    for (const NodeStatus& node : job.nodes) {
      const auto agent = std::find_if(agents_.begin(), agents_.end(),
                                      [&](const Agent& each) { return each.name == node.host; });
      if (!agent->is_liar && agent->leaves_by && agent->live_round == job.round &&
          job.phase == "running" && now_ > *agent->leaves_by) {
        violated(concat("round ", job.round, " runs on after a preemption's notice"));
      }
      if (!agent->is_liar && agent->live_round != 0 && agent->live_round != job.round) {
        violated(
            concat("two live rounds: ", agent->live_round, " on ", node.host, " and ", job.round));
      }
    }
  }
}

}  // namespace ddprun::membership::testing
