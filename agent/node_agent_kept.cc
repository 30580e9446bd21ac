// SPDX-License-Identifier: Apache-2.0
// The part of NodeAgent about workers that go on in place when one of them has died
// (docs/inplace.md): found fit, kept, given their places in the next round.
#include <utility>

#include "agent/node_agent.h"
#include "common/error.h"
#include "common/exit_codes.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

void NodeAgent::keep_workers() {
  monitor_.reset();
  late_failure_.reset();
  keeping_ = true;
  if (socket_) socket_->read_pending();
  kept_if_all_ask();
}

// Who has not offered it will never ask: a program that knows nothing of it, as most are.
void NodeAgent::kept_if_all_ask() {
  if (!keeping_) return;
  if (!workers_ || !socket_) return not_kept("they have no socket to ask on");
  if (leave_before_) return not_kept("they are asked to leave");
  if (workers_->any_ended_well()) return not_kept("one has finished");
  const std::vector<pid_t> pids = workers_->pids();
  int count = 0, num_asking = 0;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    const int local_rank = static_cast<int>(i);
    if (!socket_->offers_recovery(local_rank)) {
      return not_kept(concat("rank ", ranks_.of(local_rank), " (pid ", pids[i],
                             ") has not offered it (Session::offer_recovery)"));
    }
    ++count;
    num_asking += socket_->asks_to_recover(local_rank) ? 1 : 0;
  }
  if (count == 0) return not_kept("none is left on this node");
  pages_.tell_peer_lost();         // NCCL shows it only to some, or to nobody
  if (num_asking < count) return;  // the next one that asks comes here again
  keeping_ = false;
  waiting_in_place_ = true;
  waiting_since_ = Clock::now();
  tell_progress();
  if (events_.workers_gone) events_.workers_gone();
  handle(event::WorkersKept{round_, count, pages_.last_step()});
}

void NodeAgent::not_kept(const std::string& why) {
  if (std::exchange(keeping_, false)) handle(event::WorkersNotKept{round_, why});
}

// Socket, output and log files stay; pages are those of the new round.
void NodeAgent::go_on(const membership::StartRound& round) {
  waiting_in_place_ = false;
  round_ = round.round;
  node_rank_ = round.node_rank;
  ranks_ = {round.first_global_rank};
  first_steps_.clear();
  count_round(true);
  const std::vector<pid_t> pids = workers_->pids();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] != 0) ranks_.left.push_back(static_cast<int>(i));
  }
  if (events_.round_began) events_.round_began(round);
  failure_details_.go_on(round.round);
  workers_->go_on(round.node_rank, round.first_global_rank, group_events(round.round));
  std::string problem;
  int at_fault = ranks_.left.empty() ? 0 : ranks_.left.front();
  try {
    pages_.begin_round(round.round, options_.environment.num_workers);
  } catch (const Error& error) {
    problem = error.what();
  }
  const int num_left = static_cast<int>(ranks_.left.size());
  for (int i = 0; i < num_left && problem.empty() && !late_failure_; ++i) {
    const int local_rank = ranks_.left[static_cast<std::size_t>(i)];
    const auto place = place_variables(options_.environment, round, i, num_left, local_rank);
    if (!socket_->go_on(local_rank, place)) {
      problem = concat("rank ", ranks_.of(local_rank), " does not wait for it any more");
      at_fault = local_rank;
    }
  }
  socket_->end_old_round();
  if (problem.empty() && !late_failure_) {
    watch(round);
    return all_run(round.round);
  }
  membership::WorkerFailure failure = late_failure_.value_or(membership::WorkerFailure{});
  if (!late_failure_) {
    failure.global_rank = ranks_.of(at_fault);
    failure.local_rank = at_fault;
    failure.node_rank = round.node_rank;
    failure.host = options_.machine.join.host;
    failure.exit_code = kExitNotExecutable;
    failure.note = "could not go on in place: " + problem;
  }
  handle(event::WorkerFailed{round.round, failure, Clock::now()});
}

}  // namespace ddprun::agent
