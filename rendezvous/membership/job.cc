// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/job.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

JobState new_job(const MachineOptions& options, const Join& first,
                 std::optional<std::uint32_t> owner, Clock::time_point now) {
  JobState job;
  job.nodes.remember_changes(options.journalled);
  job.ledger = Ledger(now);
  job.began = now;
  job.run_id = first.run_id;
  job.settings = first.settings;
  job.timeouts = first.timeouts;
  job.owner = owner;
  return job;
}

// A set of functions, one for each type of message.
template <typename... Functions>
struct Handlers : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Handlers(Functions...) -> Handlers<Functions...>;  // clang 14 needs it

}  // namespace

Job::Job(const MachineOptions& options, std::uint64_t number, const Join& first,
         std::optional<std::uint32_t> owner, TimePoint now)
    : Job(options, number, new_job(options, first, owner, now), now) {
  rounds_.await_nodes(now);
}

Job::Job(const MachineOptions& options, std::uint64_t number, JobState state, TimePoint now,
         Actions& out)
    : Job(options, number, std::move(state), now) {
  rounds_.go_on_after_restart(now, out);
}

Job::Job(const MachineOptions& options, std::uint64_t number, JobState state, TimePoint now)
    : number_(number),
      state_(std::move(state)),
      roster_(options, state_, state_, now),
      blame_(state_, state_, state_.deadlines.preempt, roster_),
      hang_(state_, state_, roster_),
      rounds_(options, state_, state_, roster_, blame_, hang_) {}

void Job::collect_changes(journal::Batch& batch) {
  if (std::exchange(changed_, false)) rows_.collect(state_, job_row_prefix(number_), batch);
}

void Job::erase_rows(journal::Batch& batch) {
  JobRows::erase(state_, job_row_prefix(number_), batch);
}

// ---- agents ----

bool Job::join(ConnectionId connection, const ConnectionFacts& facts, const AgentEnvelope& envelope,
               const std::function<std::string()>& new_session, TimePoint now, Actions& out) {
  changed_ = true;
  const Join& join = variants::get<Join>(envelope.message);
  const auto known = roster_.known(join);
  if (!known) return newcomer(connection, facts, join, new_session, now, out);
  Node& node = roster_.nodes().edit(*known);
  const std::string trouble = roster_.come_back(node, connection, facts, envelope, now, out);
  if (ended()) {
    if (!trouble.empty() || node.channel.all_acknowledged()) roster_.erase(node.id, out);
  } else if (!trouble.empty()) {
    rounds_.lose(node.id, true, trouble, now, out);  // its workers live until it reads that
  } else {
    rounds_.form_if_ready(now, out);
  }
  return true;
}

bool Job::newcomer(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
                   const std::function<std::string()>& new_session, TimePoint now, Actions& out) {
  if (!join.unfit.empty()) blame_.keep_out(join, facts, out);
  if (const auto refused = admission(state_, join, facts)) {
    const std::string who = concat(join.host, " (", facts.peer_addr, ")");
    log(out, state_, LogLevel::kWarning, concat("refused ", who, ": ", refused->message), true);
    out.push_back(action::Send{connection, {0, 0, *refused}});
    out.push_back(action::Close{connection});
    if (state_.phase == JobPhase::kForming) {  // the waiting nodes may wait for this one
      roster_.tell_waiting(now, out, concat(who, " was refused: ", refused->message));
    }
    return false;
  }
  const std::string warning = join_warning(state_, join);
  const Node& node = roster_.add(connection, facts, join, new_session(), now);
  roster_.welcome(node, now, out);
  log(out, state_, LogLevel::kInfo,
      concat(describe(node), " joined with ", counted(join.num_workers, "worker")));
  if (!warning.empty()) {
    log(out, state_, LogLevel::kWarning, warning, true);
    roster_.tell(node, Waiting{0, 0, warning, false}, out);
  }
  const auto other = roster_.take_rank_wish(node);
  // An agent that was started again takes its predecessor's place, even within the predecessor's
  // grace time.
  if (other && !state_.nodes.at(*other).gone) {
    // If the predecessor hasn't come back since a restart of the rendezvous, its workers may still
    // run.
    const bool is_silent = state_.nodes.at(*other).returning;
    rounds_.lose(*other, is_silent, "a new agent came with its node rank", now, out);
  }
  if (ended()) return true;
  rounds_.form_if_ready(now, out);
  if (state_.phase == JobPhase::kForming) {
    roster_.tell_waiting(now, out);
  } else if (!is_member(node)) {
    roster_.tell_spare(node, out);
    rounds_.restart_for_joined(now, out);
  }
  return true;
}

bool Job::message(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                  Actions& out) {
  if (took_in_passing(connection, envelope, now, out)) return true;
  changed_ = true;
  Node* node = roster_.at(connection);
  if (node == nullptr) {  // its node was erased a moment ago
    out.push_back(action::Close{connection});
    return false;
  }
  node->last_heard = now;
  const Arrival arrival = node->channel.receive(envelope.seq, envelope.ack);
  const Reaction what = reaction(event_of(envelope.message));
  const bool broken = arrival == Arrival::kGap || what == Reaction::kBreaksProtocol ||
                      (envelope.seq == 0 && !may_be_unnumbered(envelope.message));
  if (broken) {
    log(out, state_, LogLevel::kWarning,
        concat(describe(*node), " broke the protocol (message ", envelope.seq,
               " out of order); closing its connection"),
        true);
    out.push_back(action::Close{connection});
    return false;
  }
  if (what == Reaction::kAcknowledges && node->channel.all_acknowledged()) {
    roster_.erase(node->id, out);
  } else if (what == Reaction::kHandled && arrival == Arrival::kNew) {
    handle(*node, envelope.message, now, out);
  }
  return true;
}

// Most messages change nothing that the journal keeps. So no row is made for them to find that out.
bool Job::took_in_passing(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                          Actions& out) {
  const JobEvent event = event_of(envelope.message);
  const auto id = roster_.id_at(connection);
  const bool is_passing = event == JobEvent::kStepTimes || event == JobEvent::kTail;
  if (!is_passing || !id || reaction(event) != Reaction::kHandled) return false;
  Node& node = roster_.nodes().edit_unkept(*id);
  if (envelope.seq != 0 || envelope.ack != node.channel.acknowledged()) return false;
  node.last_heard = now;
  handle(node, envelope.message, now, out);
  return true;
}

void Job::handle(Node& node, const AgentMessage& message, TimePoint now, Actions& out) {
  const bool current = is_member(node) && round_of(message) == state_.round;
  if (row_of(event_of(message)).scope == Scope::kRound && !current) return;
  const auto handlers = Handlers{
      [](const Join&) {},
      [](const Ack&) {},
      [&](const WorkersRunning& its) { rounds_.workers_running(node, its, now, out); },
      [&](const WorkerFailed& its) { rounds_.worker_failed(node, its.failure, now, out); },
      [&](const WorkersSucceeded&) { rounds_.workers_succeeded(node, now, out); },
      [&](const FirstStep& its) { rounds_.first_step(node, its, now); },
      [&](const WorkersStopped& its) { rounds_.workers_stopped(node, its, now, out); },
      [&](const WorkerRequest& its) { rounds_.worker_request(node, its, now, out); },
      [&](const WorkersLeft&) { rounds_.workers_left(node, now, out); },
      [&](const Preempted& its) { rounds_.warned(node, its, now, out); },
      [&](const Leave& its) { rounds_.leave(node, its, now, out); },
      [&](const RecordsWanted&) { hang_.records_wanted(out); },
      [&](const CutOff&) { roster_.fence(node, true, now); },
      [&](const Stalled& its) { hang_.stalled(node, its, now, out); },
      [&](const Inspection& its) { hang_found(hang_.answered(node, its, now, out), now, out); },
      [&](const StepTimes& its) { HangInquiry::step_times(node, its, current, now); },
      [&](const Tail& its) {
        if (node.connection) out.push_back(action::TailSaid{*node.connection, its});
      },
  };
  variants::visit(handlers, message);
}

void Job::hang_found(std::optional<Hang> hang, TimePoint now, Actions& out) {
  if (hang) rounds_.failed(hang->owner, hang->failure, hang->quiet, now, out);
}

// The journal keeps nothing of this. Thousands of connections may end at once, so no rows are made.
void Job::closed(ConnectionId connection, TimePoint now) {
  const auto id = roster_.id_at(connection);
  if (id) roster_.closed(roster_.nodes().edit_unkept(*id), now);
}

// The journal lost the end of the store, or the agent sent wrong data. Workers would wait for
// answers that never come, so the round can't go on.
void Job::store_lost(ConnectionId connection, const std::string& why, TimePoint now, Actions& out) {
  Node* node = roster_.at(connection);
  if (node == nullptr) return;
  if (state_.phase == JobPhase::kRunning && node->phase == NodePhase::kSucceeded) return;
  changed_ = true;
  const std::string what = "store can't go on: " + why;
  roster_.tell(*node,
               Refused{concat("the workers' ", what,
                              " (the rendezvous' journal lost it, or the node is confused)"),
                       static_cast<int>(ExitCode::kRetryable), false},
               out);
  if (reaction(JobEvent::kStoreLost) == Reaction::kForgotten) {
    out.push_back(action::Close{connection});
    return roster_.erase(node->id, out);
  }
  rounds_.lose(node->id, true, "its workers' " + what, now, out);
}

void Job::turn_away(const Refused& refused, Actions& out) {
  DDPRUN_CHECK(awaits_first_round());
  for (const auto& [id, node] : state_.nodes) roster_.tell(node, refused, out);
  roster_.erase_if([](const Node&) { return true; }, out);
}

void Job::hint_at(const Job& other, TimePoint now, Actions& out) {
  roster_.tell_waiting(now, out,
                       other_job_hint(state_, other.state_, other.roster_.num_placeable()));
}

// ---- time ----

void Job::tick(TimePoint now, Actions& out) {
  for (auto i = static_cast<std::size_t>(kFirstDeadline); i < kNumJobEvents; ++i) {
    const auto event = static_cast<JobEvent>(i);
    const auto due = deadline(event);
    if (!due || *due > now) continue;
    changed_ = true;
    deadline_over(event, now, out);
  }
}

std::optional<Clock::time_point> Job::next_deadline() const {
  std::optional<TimePoint> next;
  for (auto i = static_cast<std::size_t>(kFirstDeadline); i < kNumJobEvents; ++i) {
    keep_earlier(next, deadline(static_cast<JobEvent>(i)));
  }
  return next;
}

std::optional<Clock::time_point> Job::deadline(JobEvent event) const {
  if (reaction(event) == Reaction::kIgnored) return std::nullopt;
  if (event == JobEvent::kPresenceCheck) return roster_.next_look();
  if (event == JobEvent::kWaitingDue) return roster_.waiting_due();
  if (event == JobEvent::kInquiryDue) return hang_.due();
  return state_.deadlines.*row_of(event).deadline;
}

void Job::deadline_over(JobEvent event, TimePoint now, Actions& out) {
  if (event == JobEvent::kPresenceCheck) return check_presence(now, out);
  if (event == JobEvent::kWaitingDue) return roster_.tell_waiting(now, out);
  if (event == JobEvent::kInquiryDue) return hang_found(hang_.look(now, out), now, out);
  rounds_.deadline_over(event, now, out);
}

void Job::check_presence(TimePoint now, Actions& out) {
  for (const NodeId id : roster_.overdue(now)) {
    const auto found = state_.nodes.find(id);
    if (found == state_.nodes.end()) continue;  // another node's loss has ended the job
    const Node& node = found->second;
    const JobEvent event = node.connection ? JobEvent::kSilent : JobEvent::kStaysAway;
    if (reaction(event) == Reaction::kForgotten) {
      roster_.erase(id, out);
    } else {
      const bool by_silence = node.connection || node.returning;
      rounds_.lose(id, by_silence, roster_.why_overdue(node, now), now, out);
    }
  }
}

// ---- status and questions ----

std::optional<Seat> Job::seat(ConnectionId connection) const {
  const auto id = roster_.id_at(connection);
  if (!id || !is_member(state_.nodes.at(*id))) return std::nullopt;
  return Seat{number_, *id, state_.round, state_.settings.store};
}

JobStatus Job::status() const {
  JobStatus status;
  status.number = number_;
  status.run_id = state_.run_id;
  status.phase = to_string(state_.phase);
  status.round = state_.round;
  status.failures = state_.failures;
  status.node_losses = state_.node_losses;
  status.preemptions = state_.preemptions;
  status.preempting = state_.preempting;
  status.idle_rounds = state_.idle_rounds;
  status.excluded = state_.excluded;
  status.settings = state_.settings;
  status.verdict = state_.verdict;
  status.rounds.assign(state_.ledger.rounds().begin(), state_.ledger.rounds().end());
  status.seconds = state_.ledger.total();
  if (!state_.verdict) {
    status.lasting = state_.ledger.phase_member();
    status.lasts_since = state_.ledger.phase_began();
    status.delayed_until = state_.ledger.delayed_until();
  }
  status.hang = state_.last_hang;
  if (state_.phase == JobPhase::kRunning) status.stragglers = hang_.stragglers();
  if (state_.phase == JobPhase::kRunning) status.training = hang_.training();
  return status;
}

std::vector<NodeStatus> Job::node_statuses() const {
  std::vector<NodeStatus> all;
  all.reserve(state_.nodes.size());
  for (const auto& [id, node] : state_.nodes) {
    NodeStatus entry;
    entry.host = node.join.host;
    entry.addr =
        node.join.advertised_addr.empty() ? node.facts.peer_addr : node.join.advertised_addr;
    entry.phase = to_string(node.phase);
    entry.node_rank = node.node_rank;
    entry.num_workers = num_workers(node);
    entry.connected = node.connection.has_value();
    entry.monitor = node.monitor;
    if (state_.phase == JobPhase::kRunning) entry.step_times = node.step_times;
    all.push_back(std::move(entry));
  }
  return all;
}

std::vector<TailRoute> Job::ask_for_tails(const TailQuestion& question, Actions& out) const {
  const std::vector<int>& ranks = question.global_ranks;
  const auto nobody = [&](const char* why) {
    return std::vector<TailRoute>(ranks.size(), {std::nullopt, why});
  };
  if (reaction(JobEvent::kTailAsked) == Reaction::kIgnored) return nobody("the job has ended");
  if (state_.round == 0) return nobody("no round has begun yet");
  std::vector<const Node*> members;
  for (const auto& [id, node] : state_.nodes) {
    if (is_member(node)) members.push_back(&node);
  }
  std::ranges::sort(members, {}, [](const Node* node) { return *node->node_rank; });
  // The first rank of each node before the first lost one, then the rank after the last of these
  // nodes.
  std::vector<int> first_ranks{0};
  for (const Node* node : members) {
    if (*node->node_rank != std::ssize(first_ranks) - 1) break;
    first_ranks.push_back(first_ranks.back() + num_workers(*node));
  }
  const bool is_whole = first_ranks.size() == members.size() + 1;
  std::vector<TailRoute> routes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto next = std::upper_bound(first_ranks.begin(), first_ranks.end(), ranks[i]);
    if (next != first_ranks.end()) {
      const auto which = static_cast<std::size_t>(next - first_ranks.begin()) - 1;
      routes.push_back(ask_node(*members[which],
                                {state_.round, question.first_request + i, ranks[i], question.kind},
                                out));
    } else if (is_whole) {
      routes.push_back(
          {std::nullopt, concat("there is no rank ", ranks[i], " in round ", state_.round)});
    } else {
      routes.push_back(
          {std::nullopt, "a node of its round is lost, and how many ranks that had is not known"});
    }
  }
  return routes;
}

TailRoute Job::ask_node(const Node& node, const TailWanted& wanted, Actions& out) const {
  TailRoute route{std::nullopt, {}, node.join.host};
  const bool is_stack = wanted.kind == TailKind::kStack;
  if (!node.connection) {
    route.why_not = describe(node) + " has no connection to the rendezvous";
  } else if (node.join.version < (is_stack ? kStackVersion : kTailVersion)) {
    route.why_not =
        concat("the ddprun on ", describe(node), " is of an older version, which tells none");
  } else {
    roster_.tell(node, wanted, out);
    route.connection = node.connection;
  }
  return route;
}

}  // namespace ddprun::membership
