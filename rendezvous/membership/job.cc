// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/job.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/formation.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

// "preempted: …" becomes "preempted at step 26: …".
void say_step(std::uint64_t step, std::string& reason) {
  constexpr std::string_view kPreempted = "preempted";
  const bool has_place = reason.starts_with(kPreempted);
  reason.insert(has_place ? kPreempted.size() : reason.size(),
                concat(has_place ? "" : ",", " at step ", step));
}

}  // namespace

Job::Job(const MachineOptions& options, std::uint64_t number, const Join& first,
         std::optional<std::uint32_t> owner, TimePoint now)
    : options_(options), number_(number) {
  state_.nodes.remember_changes(options.journalled);
  state_.ledger = Ledger(now);
  state_.began = now;
  state_.run_id = first.run_id;
  state_.settings = first.settings;
  state_.timeouts = first.timeouts;
  state_.owner = owner;
  last_waiting_ = now - kWaitingInterval;
  await_nodes(now);
}

Job::Job(const MachineOptions& options, std::uint64_t number, JobState state, TimePoint now,
         Actions& out)
    : options_(options), number_(number), state_(std::move(state)) {
  restored_at_ = now;
  seconds_before_ = state_.ledger.total_until(now);
  if (ended()) ended_at_ = now;
  hang_.count_on_from(state_.inquiries);
  last_waiting_ = now - kWaitingInterval;
  // A node is told apart from one that is lost by its silence, and silence takes that long.
  const TimePoint until = now + std::max(options_.restore_grace, state_.timeouts.keep_alive);
  state_.nodes.edit_each([&](Node& node) {
    index(node);
    node.last_heard = now;
    if (is_member(node)) ++members_in_phase_[static_cast<std::size_t>(node.phase)];
    if (node.gone) return;
    node.returning = true;
    ++num_returning_;
    returning_until_ = until;
    node.grace_until = until;
    keep_earlier(presence_check_, until);
  });
  // Nobody listened to the nodes for a while: they get until then to say what was due.
  JobDeadlines& deadlines = state_.deadlines;
  for (Optional* deadline : {&deadlines.join, &deadlines.start, &deadlines.barrier, &deadlines.stop,
                             &deadlines.linger}) {
    if (*deadline) *deadline = std::max(**deadline, until);
  }
  log(out, LogLevel::kInfo,
      concat("goes on after a restart of the rendezvous: ", to_string(state_.phase), ", round ",
             state_.round, "; its ", counted(num_returning_, "node"),
             num_returning_ == 1 ? " has " : " have ",
             std::chrono::ceil<std::chrono::milliseconds>(until - now).count(),
             " ms to come back"));
  const bool live = state_.phase == JobPhase::kRunning || state_.phase == JobPhase::kStopping;
  if (live) {
    out.push_back(action::RoundStarted{state_.run_id, state_.round,
                                       store_is_at_endpoint(state_.settings), std::nullopt,
                                       state_.owner});
  }
}

void Job::collect_changes(journal::Batch& batch) {
  if (std::exchange(changed_, false)) rows_.collect(state_, job_row_prefix(number_), batch);
}

void Job::erase_rows(journal::Batch& batch) {
  JobRows::erase(state_, job_row_prefix(number_), batch);
}

// ---- messages of agents ----

bool Job::message(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                  Actions& out) {
  if (took_in_passing(connection, envelope, now, out)) return true;
  changed_ = true;
  Node* node = node_at(connection);
  if (node == nullptr) {  // it left or was given up a moment ago
    out.push_back(action::Close{connection});
    return false;
  }
  node->last_heard = now;
  const Arrival arrival = node->channel.receive(envelope.seq, envelope.ack);
  const bool is_ack = variants::holds_alternative<Ack>(envelope.message);
  const bool broken = arrival == Arrival::kGap ||
                      variants::holds_alternative<Join>(envelope.message) ||
                      (envelope.seq == 0 && !may_be_unnumbered(envelope.message));
  if (broken) {
    log(out, LogLevel::kWarning,
        concat(describe(*node), " broke the protocol (message ", envelope.seq,
               " out of order); closing its connection"));
    out.push_back(action::Close{connection});
    return false;
  }
  if (ended()) {
    if (node->channel.all_acknowledged()) erase(node->id, out);
    return true;
  }
  if (arrival == Arrival::kDuplicate || is_ack) return true;
  variants::visit(
      [&](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (!std::is_same_v<Message, Join> && !std::is_same_v<Message, Ack>) {
          handle(*node, message, now, out);
        }
      },
      envelope.message);
  return true;
}

// Most of what nodes say changes nothing that is kept: no row is made to find that out.
bool Job::took_in_passing(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                          Actions& out) {
  const auto* times = variants::get_if<StepTimes>(&envelope.message);
  const auto* tail = variants::get_if<Tail>(&envelope.message);
  const auto found = by_connection_.find(connection);
  if ((times == nullptr && tail == nullptr) || found == by_connection_.end() || ended()) {
    return false;
  }
  Node& node = state_.nodes.edit_unkept(found->second);
  if (envelope.seq != 0 || envelope.ack != node.channel.acknowledged()) return false;
  node.last_heard = now;
  if (times != nullptr) handle(node, *times, now, out);
  if (tail != nullptr) handle(node, *tail, now, out);
  return true;
}

bool Job::is_current(const Node& node, std::uint64_t round) const {
  return is_member(node) && round == state_.round;
}

void Job::handle(Node& node, const WorkersRunning& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || node.phase != NodePhase::kStarting) return;
  set_phase(node, NodePhase::kRunning);
  if (num_members(NodePhase::kStarting) > 0) return;
  state_.deadlines.start.reset();
  state_.ledger.running(now);
  log(out, LogLevel::kDebug, concat("all workers of round ", state_.round, " run"));
}

void Job::handle(Node& node, const WorkersSucceeded& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (node.phase != NodePhase::kStarting && node.phase != NodePhase::kRunning) return;
  node_finished(node, now, out);
}

void Job::node_finished(Node& node, TimePoint now, Actions& out) {
  set_phase(node, NodePhase::kSucceeded);
  if (num_members(NodePhase::kStarting) == 0) {
    state_.deadlines.start.reset();
    state_.ledger.running(now);
  }
  if (num_members(NodePhase::kSucceeded) == num_members()) {
    const bool any_left = std::any_of(state_.nodes.begin(), state_.nodes.end(),
                                      [](const auto& entry) { return entry.second.departed; });
    if (!any_left) return end(all_succeeded(state_), RoundEnd::kSuccess, now, out);
    stop_round(RoundEnd::kPreempted, "all workers have left: " + state_.preempting, now, out);
  } else if (!state_.deadlines.barrier && state_.preempting.empty()) {
    state_.deadlines.barrier = now + state_.timeouts.exit_barrier;
  }
}

void Job::handle(Node& node, const WorkersStopped& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || node.phase == NodePhase::kIdle) return;
  node.join.store_port = message.store_port;
  state_.ledger.last_step(message.last_step);
  if (node.phase == NodePhase::kSucceeded) {  // it lost contact when its work was done
    node.emptied = true;
    return;
  }
  const bool asked = node.phase == NodePhase::kStopping;
  if (asked && message.kept > 0) return workers_kept(node, message.kept, now, out);
  const TimePoint gone_at{std::chrono::microseconds(message.gone_at_us)};
  set_phase(node, NodePhase::kIdle);
  if (asked) {
    stop_kept(describe(node) + " has kept no workers", now, out);
    round_stopped_if_all(now, out);
  } else {
    // This rendezvous may have stood still itself for all the time that they were gone.
    if (message.gone_at_us > 0 && gone_at < now) unnoticed_ = now - gone_at;
    member_lost(describe(node) + " stopped its workers after it lost contact", now, out);
    unnoticed_ = {};
  }
}

void Job::handle(Node& node, const Leave& message, TimePoint now, Actions& out) {
  const bool before_first_round = state_.phase == JobPhase::kForming && state_.round == 0;
  if (is_member(node) && !before_first_round && !node.excluded) {
    if (message.alone || goes_on_without(node, message)) {
      return leave_alone(node, message, now, out);
    }
    end(after_leave(state_, node, message), RoundEnd::kNodeLeft, now, out);
    return;
  }
  if (message.everyone && node.left_by_signal && !ended()) {
    return end(after_leave(state_, node, message), RoundEnd::kNodeLeft, now, out);
  }
  log(out, LogLevel::kInfo, concat(describe(node), " left: ", message.reason));
  push(node, after_leave(state_, node, message), out);
  if (node.excluded && node.phase == NodePhase::kStopping) {
    node.left = true;  // its workers may live: it counts until its connection ends
    return;
  }
  erase(node.id, out);
  tell_waiting(now, out);
}

// ---- phases ----

void Job::await_nodes(TimePoint now) {
  state_.phase = JobPhase::kForming;
  const bool is_first = state_.round == 0;
  const auto others = state_.timeouts.replacement;
  const TimePoint from = std::max(
      {now, state_.deadlines.backoff.value_or(now), state_.deadlines.fenced.value_or(now)});
  state_.deadlines.join = from + (is_first || others.count() == 0 ? state_.timeouts.join : others);
}

void Job::form_if_ready(TimePoint now, Actions& out) {
  if (state_.phase != JobPhase::kForming) return;
  if (num_placeable_ < state_.settings.min_nodes) {
    state_.deadlines.last_call.reset();
    return;
  }
  if (returning_until_) {  // who was here is waited for
    state_.deadlines.last_call.reset();
    return;
  }
  TimePoint at = std::max(
      {now, state_.deadlines.fenced.value_or(now), state_.deadlines.backoff.value_or(now)});
  if (num_placeable_ < state_.settings.max_nodes) {
    const std::chrono::milliseconds wait = last_call_time();
    if (!state_.deadlines.last_call || wait.count() == 0)
      state_.deadlines.last_call = std::max(at, now + wait);
    at = *state_.deadlines.last_call;  // what else is waited for was known before it
  }
  if (now >= at) start_round(choose_nodes(state_), false, now, out);
}

// Between rounds no node is expected: one that comes late joins a later round. A rack's nodes go or
// come within moments. So a round that lost or gets a node waits a bit for another node. One that
// has all of its nodes again doesn't.
std::chrono::milliseconds Job::last_call_time() const {
  if (state_.round == 0) return state_.timeouts.last_call;
  if (num_placeable_ == state_.round_nodes) return std::chrono::milliseconds(0);
  return std::min(state_.timeouts.last_call, kNextRoundLastCall);
}

void Job::start_round(const std::vector<NodeId>& order, bool in_place, TimePoint now,
                      Actions& out) {
  ++state_.round;
  if (!in_place) state_.nodes.edit_each([](Node& node) { node.in_place = 0; });
  auto messages = start_messages(state_, order, state_.round);
  state_.phase = JobPhase::kRunning;
  state_.deadlines.join.reset();
  state_.deadlines.last_call.reset();
  state_.deadlines.fenced.reset();
  state_.deadlines.backoff.reset();
  state_.round_started = now;
  state_.round_nodes = static_cast<int>(order.size());
  state_.round_failures.begin(now);
  waiting_due_.reset();
  waiting_hint_.clear();
  state_.num_stepped = 0;
  state_.was_preempted = false;
  state_.preemption_verdict.reset();
  state_.deadlines.start = now + state_.timeouts.start;
  const int world_size = messages.begin()->second.world_size;
  log(out, LogLevel::kInfo,
      concat("round ", state_.round, in_place ? " goes on in place on " : " starts on ",
             counted(order.size(), "node"), " with ", counted(world_size, "worker")));
  out.push_back(action::RoundStarted{state_.run_id, state_.round,
                                     store_is_at_endpoint(state_.settings),
                                     state_.ledger.in_phase(now), state_.owner});
  hang_.reset();
  state_.nodes.edit_each([](Node& node) {
    node.step_times.clear();
    node.training.reset();
    node.node_rank.reset();
    node.emptied = false;
    node.stepped = false;
    node.departed = false;
  });
  state_.rank_labels.clear();
  // By rank, so that the node that serves the store is told first.
  for (const NodeId id : order) {
    Node& node = state_.nodes.edit(id);
    state_.rank_labels.push_back(node.join.topology);
    StartRound& start = messages.at(id);
    start.in_place = in_place;
    node.node_rank = start.node_rank;
    set_phase(node, NodePhase::kStarting);  // the counts follow below
    push(node, std::move(start), out);
  }
  record_round(order, world_size, in_place, now);
  members_in_phase_ = {};
  members_in_phase_[static_cast<std::size_t>(NodePhase::kStarting)] =
      static_cast<int>(order.size());
  for (const auto& [id, node] : state_.nodes) {
    if (!is_member(node)) tell_spare(node, out);
  }
}

void Job::record_round(const std::vector<NodeId>& order, int world_size, bool in_place,
                       TimePoint now) {
  RoundRecord record;
  record.round = state_.round;
  record.num_nodes = static_cast<int>(order.size());
  record.num_spares = num_placeable_;
  record.world_size = world_size;
  record.in_place = in_place;
  std::vector<std::string> members;
  for (const NodeId id : order) members.push_back(state_.nodes.at(id).key);
  state_.ledger.started(std::move(record), std::move(members), now);
}

void Job::stop_round(RoundEnd how, const std::string& reason, TimePoint now, Actions& out) {
  DDPRUN_CHECK(state_.phase == JobPhase::kRunning);
  state_.round_end = how;
  if (!state_.preempting.empty()) settle_preemption();
  settle_join_restarts(now);
  log(out, LogLevel::kWarning, concat("round ", state_.round, " is over: ", reason));
  state_.ledger.name_stragglers(find_stragglers());
  state_.ledger.over(reason, unnoticed_, now);
  hang_.reset();
  state_.phase = JobPhase::kStopping;
  state_.deadlines.start.reset();
  state_.deadlines.barrier.reset();
  state_.deadlines.join_restart.reset();
  const std::chrono::milliseconds keep{state_.keeping ? kKeepTime.count() : 0};
  state_.deadlines.stop = now + keep + stop_limit();
  std::vector<NodeId> finished_and_gone;
  state_.nodes.edit_each([&](Node& node) {
    if (node.gone) {
      finished_and_gone.push_back(node.id);
    } else if (node.emptied) {
      set_phase(node, NodePhase::kIdle);  // nothing to stop: it would not answer
    } else if (is_member(node) && node.phase != NodePhase::kIdle) {
      set_phase(node, NodePhase::kStopping);
      const bool is_last = state_.verdict_after_stop.has_value();
      push(node, StopRound{state_.round, reason, keep, is_last}, out);
    }
  });
  for (const NodeId id : finished_and_gone) erase(id, out);
  if (!finished_and_gone.empty()) {
    member_lost("a node that had finished was lost before the others had", now, out);
  }
  if (state_.phase == JobPhase::kStopping) round_stopped_if_all(now, out);
}

void Job::round_stopped_if_all(TimePoint now, Actions& out) {
  if (state_.phase != JobPhase::kStopping || num_members(NodePhase::kStopping) > 0) return;
  state_.deadlines.stop.reset();
  name_round_failures();
  state_.ledger.stopped(now, state_.deadlines.backoff);
  if (state_.verdict_after_stop) {
    const std::uint64_t step = state_.ledger.rounds().back().last_step;
    if (state_.was_preempted && step > 0) say_step(step, state_.verdict_after_stop->reason);
    end(*state_.verdict_after_stop, state_.round_end, now, out);
    return;
  }
  tell_round_over(out);
  // Not earlier: one of them may serve the round's store, which the others' workers end with.
  std::vector<NodeId> out_of_job;
  for (const auto& [id, node] : state_.nodes) {
    if (node.excluded) out_of_job.push_back(id);
  }
  for (const NodeId id : out_of_job) dismiss(state_.nodes.edit(id), out);
  await_nodes(now);
  form_if_ready(now, out);
  if (state_.phase == JobPhase::kForming) tell_waiting(now, out);
}

void Job::name_round_failures() {
  if (state_.round_failures.empty()) return;
  state_.ledger.name_failures(describe(state_.round_failures.first().failure),
                              state_.round_failures.victims());
}

void Job::tell_round_over(Actions& out) const {
  out.push_back(action::RoundOver{state_.run_id, state_.round_end});
}

void Job::end(JobEnd verdict, RoundEnd how, TimePoint now, Actions& out) {
  DDPRUN_CHECK(!ended());
  if (state_.phase == JobPhase::kRunning) state_.round_end = how;
  if (state_.phase != JobPhase::kForming) tell_round_over(out);
  if (state_.verdict_after_stop) {  // what happens while the workers are stopped isn't the cause
    verdict = std::move(*state_.verdict_after_stop);
    state_.verdict_after_stop.reset();
    if (!state_.round_failures.empty()) verdict.victims = state_.round_failures.victims();
  }
  log(out, verdict.exit_code == 0 ? LogLevel::kInfo : LogLevel::kWarning,
      concat("ended with exit code ", verdict.exit_code, verdict.reason.empty() ? "" : ": ",
             verdict.reason));
  state_.deadlines = {};
  waiting_due_.reset();
  state_.phase = JobPhase::kEnded;
  state_.preempting.clear();
  const std::vector<std::string> lagging = find_stragglers();
  state_.ledger.name_stragglers(lagging);
  state_.ledger.over(verdict.reason, unnoticed_, now);
  ended_at_ = now;
  hang_.reset();
  verdict.summary = state_.ledger.summary();
  if (!lagging.empty()) {
    verdict.summary += concat(verdict.summary.empty() ? "" : "; ", "slow: ", lagging.front());
    if (lagging.size() > 1) verdict.summary += concat(" and ", lagging.size() - 1, " more");
  }
  for (const auto& [key, reason] : state_.excluded) {
    if (verdict.excluded.size() == kMaxShownNodes) break;
    verdict.excluded.push_back(concat(key, ": ", reason));
  }
  if (options_.keep_finished.count() > 0) state_.record = finished_job(state_, verdict, now);
  state_.deadlines.linger = now + options_.end_linger;
  // Before the nodes hear of it.
  out.push_back(
      action::JobOver{state_.run_id, verdict.exit_code, store_is_at_endpoint(state_.settings)});
  std::vector<NodeId> gone;
  state_.nodes.edit_each([&](Node& node) {
    if (node.gone) {
      gone.push_back(node.id);
    } else {
      JobEnd message = verdict;
      // Not to all, who may be thousands.
      if (node.node_rank == 0) message.ledger = ledger_text(state_.ledger, kMaxLedgerBytes);
      if (!node.left) push(node, std::move(message), out);
      if (node.connection) return;
      node.grace_until = now + options_.end_grace;  // it may come back for it
      keep_earlier(presence_check_, *node.grace_until);
    }
  });
  for (const NodeId id : gone) erase(id, out);
  state_.verdict = std::move(verdict);
}

// ---- time ----

void Job::tick(TimePoint now, Actions& out) {
  const auto due = [&](const Optional& deadline) { return deadline && *deadline <= now; };
  changed_ |= due(next_deadline());
  if (due(state_.deadlines.linger)) {
    std::vector<NodeId> silent;
    for (const auto& [id, node] : state_.nodes) silent.push_back(id);
    for (const NodeId id : silent) erase(id, out);
    state_.deadlines.linger.reset();
  }
  if (due(presence_check_)) check_presence(now, out);
  if (due(returning_until_)) {
    returning_until_.reset();
    form_if_ready(now, out);
  }
  if (due(state_.deadlines.start)) end(start_timeout(state_), RoundEnd::kTimeout, now, out);
  if (due(state_.deadlines.barrier))
    end(exit_barrier_timeout(state_), RoundEnd::kTimeout, now, out);
  if (due(state_.deadlines.preempt))
    stop_round(RoundEnd::kPreempted, "its notice is over: " + state_.preempting, now, out);
  if (due(state_.deadlines.stop))
    end(stop_timeout(state_, stop_limit()), RoundEnd::kTimeout, now, out);
  if (due(state_.deadlines.last_call) || due(state_.deadlines.fenced) ||
      due(state_.deadlines.backoff)) {
    if (due(state_.deadlines.fenced)) state_.deadlines.fenced.reset();
    if (due(state_.deadlines.backoff)) state_.deadlines.backoff.reset();
    form_if_ready(now, out);
  }
  if (due(state_.deadlines.join)) {
    if (state_.nodes.empty()) {
      state_.deadlines.join.reset();
    } else {
      const bool is_first = state_.round == 0 || state_.timeouts.replacement.count() == 0;
      end(is_first ? join_timeout(state_, waiting_hint_)
                   : replacement_timeout(state_, state_.ledger.rounds().back().cause),
          RoundEnd::kTimeout, now, out);
    }
  }
  if (due(state_.deadlines.join_restart)) restart_for_joined(now, out);
  if (due(waiting_due_)) tell_waiting(now, out);
  if (due(hang_.deadline())) hang_deadline(now, out);
}

std::optional<Clock::time_point> Job::next_deadline() const {
  Optional next;
  for (const Optional* deadline : state_.deadlines.all()) keep_earlier(next, *deadline);
  for (const Optional& deadline :
       {presence_check_, returning_until_, waiting_due_, hang_.deadline()}) {
    keep_earlier(next, deadline);
  }
  return next;
}

std::chrono::milliseconds Job::stop_limit() const {
  auto grace = state_.timeouts.stop_grace;
  for (const auto& [id, node] : state_.nodes) {
    if (is_member(node)) grace = std::max(grace, node.join.timeouts.stop_grace);
  }
  return grace + options_.stop_margin;
}

PhaseSeconds Job::seconds(TimePoint now) const {
  PhaseSeconds all = state_.ledger.total_until(ended_at_.value_or(now));
  return all -= seconds_before_;
}

std::optional<double> JobStatus::ettr_at(Clock::time_point now) const {
  if (rounds.empty()) return std::nullopt;
  auto [its_phase, since, all] = lasting_at(now);
  if (its_phase != nullptr) {
    all.*its_phase += std::max(std::chrono::duration<double>(now - since).count(), 0.0);
  }
  return all.ettr();
}

JobStatus::Lasting JobStatus::lasting_at(Clock::time_point now) const {
  Lasting now_lasts{lasting, lasts_since, seconds};
  if (lasting != &PhaseSeconds::rendezvous || delayed_until <= lasts_since) return now_lasts;
  if (now < delayed_until) {
    now_lasts.phase = &PhaseSeconds::delay;
  } else {
    now_lasts.before.delay += std::chrono::duration<double>(delayed_until - lasts_since).count();
    now_lasts.since = delayed_until;
  }
  return now_lasts;
}

JobStatus Job::status() const {
  JobStatus status;
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
  if (state_.phase == JobPhase::kRunning) status.stragglers = find_stragglers();
  if (state_.phase == JobPhase::kRunning) status.training = training();
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
    status.nodes.push_back(std::move(entry));
  }
  return status;
}

}  // namespace ddprun::membership
