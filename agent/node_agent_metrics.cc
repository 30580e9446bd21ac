// SPDX-License-Identifier: Apache-2.0
// The part of NodeAgent about what it counts and reads of itself and its workers (docs/metrics.md,
// docs/events.md).
#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/node_agent.h"

namespace ddprun::agent {

void NodeAgent::count_round(bool in_place) {
  const Clock::time_point now = Clock::now();
  if (const auto since = std::exchange(waiting_since_, std::nullopt)) {
    counts_.waits.observe(std::chrono::duration<double>(now - *since).count());
  }
  const bool failed = std::exchange(failed_here_, false);
  if (!in_place && counts_.rounds > 0) {
    ++(failed ? counts_.restarts_after_failure : counts_.restarts_otherwise);
  }
  ++counts_.rounds;
}

void NodeAgent::count_failure(const membership::WorkerFailure& failure) {
  failed_here_ = true;
  WorkerExit exit{failure.global_rank, failure.local_rank, static_cast<pid_t>(failure.pid)};
  exit.kind = !failure.out_of_memory.empty() ? ExitKind::kOutOfMemory
              : failure.signal_number != 0   ? ExitKind::kSignal
                                             : ExitKind::kError;
  exit.signal_number = failure.signal_number;
  if (failure.signal_number == 0) exit.exit_code = failure.exit_code;
  ++counts_.of(exit.kind);
  if (events_.worker_ended) events_.worker_ended(exit);
}

void NodeAgent::count_end(const WorkerEnd& end) {
  WorkerExit exit{end.global_rank, end.local_rank, end.pid};
  exit.kind = end.stopped ? ExitKind::kStopped : ExitKind::kSuccess;
  exit.signal_number = end.signal_number;
  if (end.signal_number == 0) exit.exit_code = end.exit_code;
  ++counts_.of(exit.kind);
  if (events_.worker_ended) events_.worker_ended(exit);
}

// How the node is and how far its ranks are is one message where both are said: a rendezvous of a
// thousand nodes has half as many to read.
std::optional<membership::NodeReport> NodeAgent::take_node_report() {
  auto report = node_monitor_.take_report();
  if (report) tell_node(*report);
  return report;
}

void NodeAgent::read_node(membership::NodeReport report) {
  tell_node(report);
  handle(membership::agent_event::NodeRead{std::move(report)});
}

void NodeAgent::tell_node(const membership::NodeReport& report) const {
  if (events_.node_read) events_.node_read(report);
  tell_progress();
}

void NodeAgent::tell_progress() const {
  if (!events_.progressed) return;
  std::vector<RankProgress> ranks;
  for (int i = 0; i < pages_.num_workers(); ++i) {
    if (const auto words = read_page(i)) ranks.push_back({ranks_.of(i), *words});
  }
  if (!ranks.empty()) events_.progressed(ranks);
}

AgentMetrics NodeAgent::metrics() {
  AgentMetrics all;
  all.job = options_.machine.join.run_id;
  all.connected = linked_;
  all.node_rank = node_rank_;
  all.round = round_;
  std::vector<pid_t> pids;
  if (workers_) pids = workers_->pids();
  const auto num = pids.size() - static_cast<std::size_t>(std::count(pids.begin(), pids.end(), 0));
  (stopping_ ? all.num_stopping : all.num_running) = num;
  if (parked_) all.num_parked = static_cast<std::size_t>(options_.environment.num_workers);
  all.counts = counts_;
  all.node = node_monitor_.read();
  all.uses = worker_uses_.look(pids, Clock::now());
  for (std::size_t i = 0; i < all.uses.size(); ++i) {
    all.pages.push_back(pids[i] != 0 ? read_page(static_cast<int>(i)) : std::nullopt);
  }
  all.process = metrics::own_use();
  return all;
}

}  // namespace ddprun::agent
