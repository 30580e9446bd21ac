// SPDX-License-Identifier: Apache-2.0
// Reports all that is known of this node and its workers (docs/metrics.md, docs/events.md). The
// reports go to the rendezvous, into the job's record, into metrics, and to those who ask. io
// thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "agent/hang/hang_monitor.h"
#include "agent/link/agent_machine.h"
#include "agent/monitor/agent_metrics.h"
#include "agent/monitor/node_monitor.h"
#include "agent/node_agent_options.h"
#include "agent/round_workers.h"
#include "agent/worker_output.h"
#include "agent/worker_talk.h"
#include "common/clock.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// Events for a record of the job. Each may be empty; called from the io context.
struct NodeNews {
  // `round_began`: a round begins for this node. `workers_run`: all its workers run, or have ended
  // already. `pids` are by local rank; 0: none was started in this round.
  std::function<void(const membership::StartRound&)> round_began;
  std::function<void(const std::vector<pid_t>&)> workers_run;
  // Called for each worker of this node that failed, not for those that were stopped.
  std::function<void(const membership::WorkerFailure&)> worker_failed;
  // `worker_ended` is called for each worker that ended, in whatever way. `round_over`: the
  // rendezvous has ended the round. `workers_gone`: no worker of the round is left here, or they
  // wait to go on. `node_read` has the state of the node, every few seconds. `progressed` has the
  // progress of the ranks that write their page, with each `node_read` and with `workers_gone`.
  std::function<void(const WorkerExit&)> worker_ended;
  std::function<void(const membership::agent_action::RoundOver&)> round_over;
  std::function<void()> workers_gone;
  std::function<void(const membership::NodeReport&)> node_read;
  std::function<void(const std::vector<RankProgress>&)> progressed;
};

class NodeReporter {
 public:
  // All but `say` outlive this.
  NodeReporter(boost::asio::io_context& io, const NodeAgentOptions& options, const WorkerTalk& talk,
               const RoundWorkers& workers, const NodeNews& news, Say say);

  // Reads the node from now on. It counts as waiting for a round.
  void start();

  // ---- The node's life ----

  // Called when the node has its place in a round: its workers start, or go on in place.
  void count_round(bool in_place);
  void round_began(const membership::StartRound& round) const;
  void workers_run(const std::vector<pid_t>& pids) const;
  void worker_failed(const membership::WorkerFailure& failure);
  void worker_ended(const WorkerExit& exit);
  // Called when the workers are gone, or wait for the next round. Their pages can still be read.
  void workers_gone();

  // Watches the round's workers until the next call of watch() or unwatch().
  void watch(std::uint64_t round);
  void unwatch() { monitor_.reset(); }

  // ---- Questions ----

  // The answers come as events: RanksInspected, if the workers are watched, and TailRead.
  void inspect(std::uint64_t inquiry);
  void read_tail(const membership::agent_action::ReadTail& wanted) const;
  // Returns the present values, except those of the link and the parked workers. Waits for nothing.
  AgentMetrics metrics();

 private:
  void read_stack(const membership::agent_action::ReadTail& wanted,
                  const std::function<void(LastOutput)>& answer) const;
  void read_node(membership::NodeReport report) const;
  std::optional<membership::NodeReport> take_node_report();
  void tell_node(const membership::NodeReport& report) const;
  void tell_progress() const;

  boost::asio::io_context& io_;
  const NodeAgentOptions& options_;
  const WorkerTalk& talk_;
  const RoundWorkers& workers_;
  const NodeNews& news_;
  const Say say_;

  std::unique_ptr<HangMonitor> monitor_;  // null: nothing is watched
  NodeMonitor node_monitor_;
  WorkerUseReader worker_uses_;  // for metrics()
  AgentCounts counts_;
  std::optional<Clock::time_point> waiting_since_;  // set: there is no round and no worker
  bool failed_here_ = false;                        // a worker of this node has failed in the round
};

}  // namespace ddprun::agent
