// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rounds.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/formation.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

constexpr std::chrono::milliseconds kNextRoundLastCall{1'000};

// Adds the step: "preempted: …" becomes "preempted at step 26: …".
void say_step(std::uint64_t step, std::string& reason) {
  constexpr std::string_view kPreempted = "preempted";
  const bool has_place = reason.starts_with(kPreempted);
  reason.insert(has_place ? kPreempted.size() : reason.size(),
                concat(has_place ? "" : ",", " at step ", step));
}

bool has_workers(const Node& node) {
  return node.phase == NodePhase::kStarting || node.phase == NodePhase::kRunning;
}

}  // namespace

void Rounds::go_on_after_restart(TimePoint now, Actions& out) {
  seconds_before_ = job_.ledger.total_until(now);
  if (is_in(JobPhase::kEnded)) ended_at_ = now;
  // Only silence shows that a node is lost, and that takes the keep-alive time.
  const TimePoint until = now + std::max(options_.restore_grace, job_.timeouts.keep_alive);
  roster_.expect_all_back(now, until);
  // For a while no rendezvous received the nodes' messages. So deadlines are extended until then.
  JobDeadlines& deadlines = mine_.deadlines;
  for (Optional* deadline : {&deadlines.join, &deadlines.start, &deadlines.barrier, &deadlines.stop,
                             &deadlines.linger}) {
    if (*deadline) *deadline = std::max(**deadline, until);
  }
  const int num_nodes = roster_.num_returning();
  log(out, job_, LogLevel::kInfo,
      concat("goes on after a restart of the rendezvous: ", to_string(job_.phase), ", round ",
             job_.round, "; its ", counted(num_nodes, "node"), num_nodes == 1 ? " has " : " have ",
             std::chrono::ceil<std::chrono::milliseconds>(until - now).count(),
             " ms to come back"));
  if (is_in(JobPhase::kRunning) || is_in(JobPhase::kStopping)) {
    out.push_back(action::RoundStarted{job_.run_id, job_.round, store_is_at_endpoint(job_.settings),
                                       std::nullopt, job_.owner});
  }
}

// ---- forming ----

void Rounds::await_nodes(TimePoint now) {
  mine_.phase = JobPhase::kForming;
  const bool is_first = job_.round == 0;
  const auto others = job_.timeouts.replacement;
  const TimePoint from =
      std::max({now, job_.deadlines.backoff.value_or(now), job_.deadlines.fenced.value_or(now)});
  mine_.deadlines.join = from + (is_first || others.count() == 0 ? job_.timeouts.join : others);
}

void Rounds::form_if_ready(TimePoint now, Actions& out) {
  if (!is_in(JobPhase::kForming)) return;
  // After a restart of the rendezvous the round waits for the nodes that were here.
  if (roster_.num_placeable() < job_.settings.min_nodes || roster_.num_returning() > 0) {
    mine_.deadlines.last_call.reset();
    return;
  }
  TimePoint at =
      std::max({now, job_.deadlines.fenced.value_or(now), job_.deadlines.backoff.value_or(now)});
  if (roster_.num_placeable() < job_.settings.max_nodes) {
    const std::chrono::milliseconds wait = last_call_time();
    if (!job_.deadlines.last_call || wait.count() == 0)
      mine_.deadlines.last_call = std::max(at, now + wait);
    at = *job_.deadlines.last_call;  // it is never before the other two times
  }
  if (now >= at) start(choose_nodes(job_), false, now, out);
}

// Between rounds no node is expected: one that comes late joins a later round. But a rack's nodes
// go or come within moments. So a round with more or fewer nodes than the last one waits a bit for
// others. A round with the same number doesn't.
std::chrono::milliseconds Rounds::last_call_time() const {
  if (job_.round == 0) return job_.timeouts.last_call;
  if (roster_.num_placeable() == job_.round_nodes) return std::chrono::milliseconds(0);
  return std::min(job_.timeouts.last_call, kNextRoundLastCall);
}

// ---- a live round ----

void Rounds::start(const std::vector<NodeId>& order, bool in_place, TimePoint now, Actions& out) {
  ++mine_.round;
  if (!in_place) roster_.nodes().edit_each([](Node& node) { node.in_place = 0; });
  auto messages = start_messages(job_, order, job_.round);
  mine_.phase = JobPhase::kRunning;
  mine_.deadlines.join.reset();
  mine_.deadlines.last_call.reset();
  mine_.deadlines.fenced.reset();
  mine_.deadlines.backoff.reset();
  mine_.deadlines.start = now + job_.timeouts.start;
  mine_.round_started = now;
  mine_.round_nodes = static_cast<int>(order.size());
  mine_.num_stepped = 0;
  blame_.round_begins(now);
  roster_.nobody_waits();
  hang_.reset();
  const int world_size = messages.begin()->second.world_size;
  log(out, job_, LogLevel::kInfo,
      concat("round ", job_.round, in_place ? " goes on in place on " : " starts on ",
             counted(order.size(), "node"), " with ", counted(world_size, "worker")));
  out.push_back(action::RoundStarted{job_.run_id, job_.round, store_is_at_endpoint(job_.settings),
                                     job_.ledger.in_phase(now), job_.owner});
  roster_.nodes().edit_each([this](Node& node) {
    node.step_times.clear();
    node.training.reset();
    roster_.set_rank(node, std::nullopt);
    node.emptied = false;
    node.stepped = false;
    node.departed = false;
  });
  mine_.rank_labels.clear();
  // In order of rank, so that the node that serves the store gets the message first.
  for (const NodeId id : order) {
    Node& node = roster_.nodes().edit(id);
    mine_.rank_labels.push_back(node.join.topology);
    StartRound& message = messages.at(id);
    message.in_place = in_place;
    roster_.set_rank(node, message.node_rank);
    roster_.set_phase(node, NodePhase::kStarting);
    roster_.push(node, std::move(message), out);
  }
  record_round(order, world_size, in_place, now);
  for (const auto& [id, node] : job_.nodes) {
    if (!is_member(node)) roster_.tell_spare(node, out);
  }
}

void Rounds::record_round(const std::vector<NodeId>& order, int world_size, bool in_place,
                          TimePoint now) {
  RoundRecord record;
  record.round = job_.round;
  record.num_nodes = static_cast<int>(order.size());
  record.num_spares = roster_.num_placeable();
  record.world_size = world_size;
  record.in_place = in_place;
  std::vector<std::string> members;
  for (const NodeId id : order) members.push_back(job_.nodes.at(id).key);
  mine_.ledger.started(std::move(record), std::move(members), now);
}

void Rounds::workers_running(Node& node, const WorkersRunning& message, TimePoint now,
                             Actions& out) {
  if (node.phase != NodePhase::kStarting) return;
  roster_.set_phase(node, NodePhase::kRunning);
  mine_.ledger.node_runs(message);
  if (!all_run(now)) return;
  const RoundRecord& round = job_.ledger.rounds().back();
  const bool may_be_warm = round.num_warm > 0 || !round.cold.empty();
  log(out, job_, may_be_warm ? LogLevel::kInfo : LogLevel::kDebug,
      concat("all workers of round ", job_.round, " run",
             may_be_warm ? concat("; ", round.num_warm, " of ", round.world_size, " began warm")
                         : std::string(),
             round.cold.empty() ? std::string() : concat(", the others not: ", round.cold)));
}

bool Rounds::all_run(TimePoint now) {
  if (roster_.num_members(NodePhase::kStarting) > 0) return false;
  mine_.deadlines.start.reset();
  mine_.ledger.running(now);
  return true;
}

void Rounds::first_step(Node& node, const FirstStep& message, TimePoint now) {
  if (std::exchange(node.stepped, true)) return;
  const bool is_first = job_.num_stepped == 0;
  mine_.first_step = is_first ? message.step : std::min(job_.first_step, message.step);
  const std::chrono::microseconds connecting(message.connecting_us);
  mine_.connecting = is_first ? connecting : std::max(job_.connecting, connecting);
  blame_.progressed();
  if (++mine_.num_stepped < roster_.num_members()) return;
  mine_.ledger.first_step(job_.first_step, job_.connecting, now);
}

void Rounds::workers_succeeded(Node& node, TimePoint now, Actions& out) {
  if (!has_workers(node)) return;
  roster_.set_phase(node, NodePhase::kSucceeded);
  all_run(now);
  if (roster_.num_members(NodePhase::kSucceeded) == roster_.num_members()) {
    const bool any_left =
        std::ranges::any_of(job_.nodes, [](const auto& entry) { return entry.second.departed; });
    if (!any_left) return end(all_succeeded(job_), RoundEnd::kSuccess, now, out);
    stop(RoundEnd::kPreempted, "all workers have left: " + job_.preempting, {}, now, out);
  } else if (!job_.deadlines.barrier && job_.preempting.empty()) {
    mine_.deadlines.barrier = now + job_.timeouts.exit_barrier;
  }
}

void Rounds::workers_left(Node& node, TimePoint now, Actions& out) {
  if (!has_workers(node)) return;
  if (job_.preempting.empty()) {  // they left unasked
    WorkerFailure failure;
    failure.exit_code = static_cast<int>(ExitCode::kRetryable);
    return worker_failed(node, std::move(failure), now, out);
  }
  node.departed = true;
  workers_succeeded(node, now, out);
}

// ---- a round's end ----

void Rounds::worker_failed(Node& node, WorkerFailure failure, TimePoint now, Actions& out) {
  if (node.phase == NodePhase::kIdle) return;  // it has already reported that its workers are gone
  // A failure's message may come after a later failure has ended the round.
  if (is_in(JobPhase::kStopping) && job_.round_failures.empty()) return;
  failure.node_rank = *node.node_rank;
  if (failure.host.empty()) failure.host = node.join.host;
  failure.hung = false;  // only the comparison of all ranks sets it
  blame_.note_failure(node, failure, now, out);
  if (is_in(JobPhase::kRunning)) failed(&node, failure, {}, now, out);
}

void Rounds::failed(Node* node, const WorkerFailure& failure, Clock::duration unnoticed,
                    TimePoint now, Actions& out) {
  blame_.count_failure(node, failure, out);
  const RoundEnd how = failure.hung ? RoundEnd::kHang : RoundEnd::kWorkerFailed;
  if (job_.verdict_after_stop) return stop(how, {}, unnoticed, now, out);
  const std::string doubt = doubt_about_failure(job_, failure);
  mine_.keeping = doubt.empty();
  std::string how_on;
  if (job_.keeping) {
    how_on = " in place, if all that live can";
  } else {
    if (job_.settings.recovery == Recovery::kInPlace)
      how_on = concat(" (not in place: ", doubt, ")");
    how_on += await_backoff(now);
  }
  stop(how,
       concat(describe(failure), "; restart ", job_.failures, " of ", job_.settings.max_restarts,
              how_on),
       unnoticed, now, out);
}

void Rounds::go_on_without(const std::string& what, TimePoint now, Actions& out) {
  blame_.count_loss();
  blame_.decide(after_loss(job_, what));
  blame_.count_progress(what);
  stop(RoundEnd::kNodeLeft, what, {}, now, out);
}

void Rounds::member_lost(const std::string& what, Clock::duration unnoticed, TimePoint now,
                         Actions& out) {
  // Each round counts at most one loss, even if many nodes of a rack go.
  if (is_in(JobPhase::kRunning)) blame_.count_loss();
  stop_kept(what, now, out);
  if (is_in(JobPhase::kStopping) && job_.verdict_after_stop) {
    stopped_if_all(now, out);
  } else if (auto verdict = after_loss(job_, what)) {
    end(std::move(*verdict), RoundEnd::kNodeLost, now, out, unnoticed);
  } else if (is_in(JobPhase::kRunning)) {
    blame_.count_progress(what);
    stop(RoundEnd::kNodeLost, what, unnoticed, now, out);
  } else if (is_in(JobPhase::kStopping)) {
    stopped_if_all(now, out);
  } else {
    form_if_ready(now, out);
  }
}

void Rounds::loss_was_earlier(const std::string& what, Actions& out) {
  const std::string victim = blame_.loss_was_earlier(what, out);
  mine_.deadlines.backoff.reset();
  if (!job_.was_preempted) mine_.round_end = RoundEnd::kNodeLost;
  mine_.ledger.name_cause(concat(what, "; then ", victim));
}

// Sets the delay of the next round. Returns " in 2 s: …" for the message about this round's end.
std::string Rounds::await_backoff(TimePoint now) {
  const auto delay = blame_.count_quick_failure(now);
  if (delay.count() == 0) return {};
  mine_.deadlines.backoff = now + delay;
  return concat(" in ", static_cast<double>(delay.count()) / 1000, " s: ", job_.quick_failures,
                " rounds in a row failed within ", kCrashLoopRound.count(), " s");
}

// A host that comes, fails and comes again must not re-form the job for ever. So the round must
// have run for some time, which doubles with each restart in vain. A restart is in vain if no
// larger round followed that lasted.
void Rounds::restart_for_joined(TimePoint now, Actions& out) {
  mine_.deadlines.join_restart.reset();
  if (!job_.settings.restart_on_join || !is_in(JobPhase::kRunning)) return;
  if (roster_.num_members() >= job_.settings.max_nodes) return;
  // A new round would repeat the work of nodes that have finished.
  if (roster_.num_members(NodePhase::kSucceeded) > 0) return;
  const auto joined = std::ranges::find_if(job_.nodes, [](const auto& entry) {
    return is_placeable(entry.second) && !is_member(entry.second);
  });
  if (joined == job_.nodes.end()) return;
  settle_join_restarts(now);
  // Nodes that are started together come one after the other. While the larger round lives, the
  // last restart was not in vain. There are at most --nnodes such restarts.
  const bool grew = roster_.num_members() > job_.nodes_before_join_restart;
  const TimePoint at =
      grew ? now : job_.round_started + join_restart_delay(job_.vain_join_restarts);
  if (now < at) {
    mine_.deadlines.join_restart = at;
    log(out, job_, LogLevel::kInfo,
        concat(describe(joined->second),
               " joined; the round goes on for now: ", job_.vain_join_restarts,
               " restarts for nodes that joined brought no larger round that lasted"));
    return;
  }
  ++mine_.vain_join_restarts;
  mine_.nodes_before_join_restart = roster_.num_members();
  stop(RoundEnd::kNodeJoined, concat(describe(joined->second), " joined (--on-join=restart)"), {},
       now, out);
}

// Resets the count of vain restarts if the live round is larger than before, and has lasted.
void Rounds::settle_join_restarts(TimePoint now) {
  const bool lasted =
      job_.num_stepped >= job_.round_nodes || now - job_.round_started >= kCrashLoopRound;
  if (lasted && job_.round_nodes > job_.nodes_before_join_restart) mine_.vain_join_restarts = 0;
}

void Rounds::stop(RoundEnd how, const std::string& reason, Clock::duration unnoticed, TimePoint now,
                  Actions& out) {
  DDPRUN_CHECK(is_in(JobPhase::kRunning));
  const std::string told = job_.verdict_after_stop ? job_.verdict_after_stop->reason : reason;
  mine_.round_end = how;
  if (!job_.preempting.empty()) mine_.round_end = blame_.settle_warning();
  settle_join_restarts(now);
  log(out, job_, LogLevel::kWarning, concat("round ", job_.round, " is over: ", told));
  mine_.ledger.name_stragglers(hang_.stragglers());
  mine_.ledger.over(told, unnoticed, now);
  hang_.reset();
  mine_.phase = JobPhase::kStopping;
  mine_.deadlines.start.reset();
  mine_.deadlines.barrier.reset();
  mine_.deadlines.join_restart.reset();
  const std::chrono::milliseconds keep{job_.keeping ? kKeepTime.count() : 0};
  mine_.deadlines.stop = now + keep + stop_limit();
  roster_.nodes().edit_each([&](Node& node) {
    if (node.gone) return;
    if (node.emptied) {
      roster_.set_phase(node, NodePhase::kIdle);  // it has nothing to stop, and would not answer
    } else if (is_member(node) && node.phase != NodePhase::kIdle) {
      roster_.set_phase(node, NodePhase::kStopping);
      const bool is_last = job_.verdict_after_stop.has_value();
      roster_.push(node, StopRound{job_.round, told, keep, is_last}, out);
    }
  });
  if (roster_.erase_if([](const Node& node) { return node.gone; }, out)) {
    member_lost("a node that had finished was lost before the others had", {}, now, out);
  }
  if (is_in(JobPhase::kStopping)) stopped_if_all(now, out);
}

void Rounds::workers_stopped(Node& node, const WorkersStopped& message, TimePoint now,
                             Actions& out) {
  if (node.phase == NodePhase::kIdle) return;
  node.join.store_port = message.store_port;
  mine_.ledger.last_step(message.last_step);
  if (node.phase == NodePhase::kSucceeded) {  // it lost contact after its work was done
    node.emptied = true;
    return;
  }
  const bool asked = node.phase == NodePhase::kStopping;
  if (asked && message.kept > 0) return workers_kept(node, message.kept, now, out);
  roster_.set_phase(node, NodePhase::kIdle);
  if (asked) {
    stop_kept(describe(node) + " has kept no workers", now, out);
    return stopped_if_all(now, out);
  }
  // The workers may be gone for long already: this rendezvous itself may have stood still.
  const TimePoint gone_at{std::chrono::microseconds(message.gone_at_us)};
  const bool is_known = message.gone_at_us > 0 && gone_at < now;
  member_lost(describe(node) + " stopped its workers after it lost contact",
              is_known ? now - gone_at : Clock::duration::zero(), now, out);
}

void Rounds::stopped_if_all(TimePoint now, Actions& out) {
  if (!is_in(JobPhase::kStopping) || roster_.num_members(NodePhase::kStopping) > 0) return;
  close_round(job_.deadlines.backoff, now);
  if (auto verdict = blame_.take_verdict()) {
    const std::uint64_t step = job_.ledger.rounds().back().last_step;
    if (job_.was_preempted && step > 0) say_step(step, verdict->reason);
    return end(std::move(*verdict), job_.round_end, now, out);
  }
  out.push_back(action::RoundOver{job_.run_id, job_.round_end});
  // Excluded nodes go only now: one of them may serve the round's store, which other nodes' workers
  // need to end.
  for (const NodeId id : roster_.ids_of([](const Node& node) { return node.excluded; })) {
    Node& node = roster_.nodes().edit(id);
    if (!node.left) {
      roster_.push(node, node.preempted ? preempted(job_, node) : excluded(job_, node), out);
    }
    roster_.erase(id, out);
  }
  await_nodes(now);
  form_if_ready(now, out);
  if (is_in(JobPhase::kForming)) roster_.tell_waiting(now, out);
}

// Called when nothing of the round changes any more.
void Rounds::close_round(Optional next_not_before, TimePoint now) {
  mine_.deadlines.stop.reset();
  if (!job_.round_failures.empty()) {
    mine_.ledger.name_failures(describe(job_.round_failures.first().failure),
                               job_.round_failures.victims());
  }
  mine_.ledger.stopped(now, next_not_before);
}

std::chrono::milliseconds Rounds::stop_limit() const {
  auto grace = job_.timeouts.shutdown;
  for (const auto& [id, node] : job_.nodes) {
    if (is_member(node)) grace = std::max(grace, node.join.timeouts.shutdown);
  }
  return grace + options_.stop_margin;
}

// ---- in place (docs/inplace.md) ----

// After a worker has died, each node is asked to keep the living workers. If all nodes do, the next
// round begins with them. If one doesn't, all workers are stopped, and a usual round follows.

void Rounds::workers_kept(Node& node, int count, TimePoint now, Actions& out) {
  if (!job_.keeping) return;  // the node was told to stop them meanwhile, and will answer again
  node.kept = count;
  for (const auto& [id, each] : job_.nodes) {
    if (is_member(each) && each.kept == 0) return;
  }
  if (const std::string doubt = doubt_about_kept(job_); !doubt.empty()) {
    return stop_kept(doubt, now, out);
  }
  mine_.keeping = false;
  close_round({}, now);
  out.push_back(action::RoundOver{job_.run_id, job_.round_end});
  const std::vector<NodeId> order = members_in_order(job_);
  for (const NodeId id : order) {
    Node& member = roster_.nodes().edit(id);
    member.in_place = std::exchange(member.kept, 0);
  }
  start(order, true, now, out);
}

// Gives up going on in place: every node that kept workers, or may do so, stops them.
void Rounds::stop_kept(const std::string& why, TimePoint now, Actions& out) {
  if (!std::exchange(mine_.keeping, false)) return;
  log(out, job_, LogLevel::kWarning,
      concat("round ", job_.round, " can't go on in place: ", why, "; its workers are stopped"));
  await_backoff(now);
  mine_.deadlines.stop = now + stop_limit();
  roster_.nodes().edit_each([&](Node& node) {
    node.kept = 0;
    if (!is_member(node) || node.phase != NodePhase::kStopping) return;
    roster_.push(node, StopRound{job_.round, "it can't go on in place: " + why, {}}, out);
  });
}

// ---- nodes that go ----

void Rounds::lose(NodeId id, bool by_silence, const std::string& how, TimePoint now, Actions& out) {
  if (job_.nodes.find(id) == job_.nodes.end() || is_in(JobPhase::kEnded)) return;
  Node& node = roster_.nodes().edit(id);
  const std::string what = concat(describe(node), " was lost: ", how);
  const bool serves_store = node.node_rank == 0 && store_is_at_node(job_.settings);
  if (is_in(JobPhase::kRunning) && node.phase == NodePhase::kSucceeded && !serves_store) {
    log(out, job_, LogLevel::kWarning, what + "; its workers had all finished");
    if (node.connection) roster_.disconnect(node, out);
    node.gone = true;
    return;
  }
  const bool member = is_member(node) && job_.round > 0;
  const Clock::duration grace =
      node.grace_until ? options_.reconnect_grace : Clock::duration::zero();
  const Clock::duration unnoticed = by_silence ? now - node.last_heard : grace;
  roster_.fence(node, by_silence, now);
  const bool round_live = is_in(JobPhase::kRunning) || is_in(JobPhase::kStopping);
  if (node.fenced_until && round_live && node.phase != NodePhase::kIdle) {
    mine_.deadlines.fenced = std::max(job_.deadlines.fenced.value_or(now), *node.fenced_until);
  }
  log(out, job_, LogLevel::kWarning, what);
  if (member && is_in(JobPhase::kStopping) && !job_.round_failures.empty()) {
    const bool came_first = now - unnoticed < job_.round_failures.first().at;
    if (came_first && !node.left) loss_was_earlier(what, out);
  }
  roster_.erase(id, out);
  if (member) return member_lost(what, unnoticed, now, out);
  form_if_ready(now, out);  // the round may have waited for this node only
  roster_.tell_waiting(now, out);
}

// ---- nodes that leave, or are asked to be excluded ----

void Rounds::leave(Node& node, const Leave& message, TimePoint now, Actions& out) {
  const JobEnd its_end = after_leave(job_, node, message);
  const bool before_first_round = is_in(JobPhase::kForming) && job_.round == 0;
  if (is_member(node) && !before_first_round && !node.excluded) {
    if (message.alone || goes_on_without(node, message)) {
      return leave_alone(node, message, its_end, now, out);
    }
    return end(its_end, RoundEnd::kNodeLeft, now, out);
  }
  if (message.everyone && node.left_by_signal) {
    return end(its_end, RoundEnd::kNodeLeft, now, out);
  }
  log(out, job_, LogLevel::kInfo, its_end.reason);
  roster_.push(node, its_end, out);
  if (node.excluded && node.phase == NodePhase::kStopping) {
    node.left = true;  // its workers may live, so it counts until its connection ends
    return;
  }
  roster_.erase(node.id, out);
  roster_.tell_waiting(now, out);
}

// An elastic job with enough other nodes goes on, as after a node's loss.
bool Rounds::goes_on_without(const Node& node, const Leave& message) const {
  const JobSettings& settings = job_.settings;
  if (message.everyone || settings.min_nodes == settings.max_nodes) return false;
  return !roster_.serves_rendezvous(node) && nodes_left(job_) > settings.min_nodes;
}

// Handles the node like one whose worker asked to exclude it. But its agent stops the workers
// itself, and they count until its connection ends.
void Rounds::leave_alone(Node& node, const Leave& message, const JobEnd& its_end, TimePoint now,
                         Actions& out) {
  roster_.push(node, its_end, out);
  if (!has_workers(node) && node.phase != NodePhase::kStopping) {
    return lose(node.id, false, message.reason, now, out);
  }
  node.left = true;
  node.left_by_signal = !message.alone;
  roster_.set_excluded(node, true);
  if (!is_in(JobPhase::kRunning)) return;
  log(out, job_, LogLevel::kWarning, its_end.reason);
  go_on_without(its_end.reason, now, out);
}

// A node that asks to be excluded counts as lost, in the same budget.
void Rounds::worker_request(Node& node, const WorkerRequest& message, TimePoint now, Actions& out) {
  if (!has_workers(node)) return;
  if (message.kind == WorkerRequest::Kind::kStopJob) {
    blame_.decide(after_stop_request(job_, node, message));
    return stop(RoundEnd::kWorkerRequest, {}, {}, now, out);
  }
  blame_.exclude(node, exclusion_reason(message), out);
  go_on_without(concat(describe(node), " is excluded: ", job_.excluded.at(node.key)), now, out);
}

// ---- warnings: a node is about to be taken away, or the job's time is over ----

void Rounds::warned(Node& node, const Preempted& message, TimePoint now, Actions& out) {
  const bool live = is_in(JobPhase::kRunning);
  const std::string what = concat(describe(node), " ", message.reason);
  if (message.kind == Preempted::Kind::kTimeLimit) {
    if (is_in(JobPhase::kForming)) {
      return end(after_time_limit(job_, what), RoundEnd::kTimeLimit, now, out);
    }
    if (!live) return blame_.time_is_over(what);
  } else {
    if (std::exchange(node.warned, true)) return;
    if (!live || !is_member(node) || node.phase == NodePhase::kIdle) {
      return warned_idle(node, what, now, out);
    }
  }
  blame_.ask_to_leave(message, what, now, out);
}

// For a spare, or a node between two rounds: it has no running workers to ask.
void Rounds::warned_idle(Node& node, const std::string& what, TimePoint now, Actions& out) {
  log(out, job_, LogLevel::kWarning, what);
  if (node.phase == NodePhase::kStopping) {
    node.preempted = true;  // it goes when its workers are stopped
    return roster_.set_excluded(node, true);
  }
  const bool is_needed = is_member(node) && job_.round > 0;
  const bool takes_rendezvous = roster_.serves_rendezvous(node);
  roster_.push(node, preempted(job_, node), out);
  roster_.erase(node.id, out);
  if (is_needed || takes_rendezvous) {
    if (auto verdict = after_preemption(job_, what, takes_rendezvous)) {
      return end(std::move(*verdict), RoundEnd::kPreempted, now, out);
    }
  }
  roster_.tell_waiting(now, out);
}

// ---- the job's end ----

void Rounds::end(JobEnd verdict, RoundEnd how, TimePoint now, Actions& out,
                 Clock::duration unnoticed) {
  DDPRUN_CHECK(!is_in(JobPhase::kEnded));
  if (is_in(JobPhase::kRunning)) mine_.round_end = how;
  if (!is_in(JobPhase::kForming)) out.push_back(action::RoundOver{job_.run_id, job_.round_end});
  // A verdict that was decided before the workers were stopped has precedence.
  if (auto decided = blame_.take_verdict()) verdict = std::move(*decided);
  log(out, job_, verdict.exit_code == 0 ? LogLevel::kInfo : LogLevel::kWarning,
      concat("ended with exit code ", verdict.exit_code, verdict.reason.empty() ? "" : ": ",
             verdict.reason));
  mine_.deadlines = {};
  mine_.phase = JobPhase::kEnded;
  const std::vector<std::string> lagging = hang_.stragglers();
  mine_.ledger.name_stragglers(lagging);
  mine_.ledger.over(verdict.reason, unnoticed, now);
  ended_at_ = now;
  roster_.nobody_waits();
  blame_.job_ends();
  hang_.reset();
  verdict.summary = job_.ledger.summary();
  if (!lagging.empty()) {
    verdict.summary += concat(verdict.summary.empty() ? "" : "; ", "slow: ", lagging.front());
    if (lagging.size() > 1) verdict.summary += concat(" and ", lagging.size() - 1, " more");
  }
  for (const auto& [key, reason] : job_.excluded) {
    if (verdict.excluded.size() == kMaxShownNodes) break;
    verdict.excluded.push_back(concat(key, ": ", reason));
  }
  if (options_.keep_finished.count() > 0) mine_.record = finished_job(job_, verdict, now);
  mine_.deadlines.linger = now + options_.end_linger;
  // JobOver comes before the nodes' messages.
  out.push_back(
      action::JobOver{job_.run_id, verdict.exit_code, store_is_at_endpoint(job_.settings)});
  tell_end(verdict, now, out);
  mine_.verdict = std::move(verdict);
}

void Rounds::tell_end(const JobEnd& verdict, TimePoint now, Actions& out) {
  roster_.nodes().edit_each([&](Node& node) {
    if (node.gone) return;
    JobEnd message = verdict;
    // Only one node gets the ledger, since there may be thousands.
    if (node.node_rank == 0) message.ledger = ledger_text(job_.ledger, kMaxLedgerBytes);
    if (!node.left) roster_.push(node, std::move(message), out);
    // The node may come back for the message.
    if (!node.connection) roster_.give_grace(node, now + options_.end_grace);
  });
  roster_.erase_if([](const Node& node) { return node.gone; }, out);
}

PhaseSeconds Rounds::seconds(TimePoint now) const {
  PhaseSeconds all = job_.ledger.total_until(ended_at_.value_or(now));
  return all -= seconds_before_;
}

// ---- time ----

void Rounds::deadline_over(JobEvent event, TimePoint now, Actions& out) {
  using enum JobEvent;
  constexpr RoundEnd kTimeout = RoundEnd::kTimeout;
  if (event == kStartOver) return end(start_timeout(job_), kTimeout, now, out);
  if (event == kBarrierOver) return end(exit_barrier_timeout(job_), kTimeout, now, out);
  if (event == kStopOver) return end(stop_timeout(job_, stop_limit()), kTimeout, now, out);
  if (event == kJoinRestartDue) return restart_for_joined(now, out);
  if (event == kNoticeOver) {
    return stop(RoundEnd::kPreempted, "its notice is over: " + job_.preempting, {}, now, out);
  }
  if (event == kJoinTimeOver && !job_.nodes.empty()) {
    const bool is_first = job_.round == 0 || job_.timeouts.replacement.count() == 0;
    return end(is_first ? join_timeout(job_, roster_.waiting_hint())
                        : replacement_timeout(job_, job_.ledger.rounds().back().cause),
               kTimeout, now, out);
  }
  if (event != kLastCallOver) (mine_.deadlines.*row_of(event).deadline).reset();
  if (event == kLingerOver) roster_.erase_if([](const Node&) { return true; }, out);
  form_if_ready(now, out);
}

}  // namespace ddprun::membership
