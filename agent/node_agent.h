// SPDX-License-Identifier: Apache-2.0
// One node's agent at work: AgentMachine decides, this class carries out. It wires the machine to
// its link, the round's store, the node's workers and a timer. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/console.h"
#include "agent/failure_details.h"
#include "agent/gpu/gpu_helper.h"
#include "agent/hang/hang_monitor.h"
#include "agent/hang/rank_sample.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/link/agent_link.h"
#include "agent/link/agent_runner.h"
#include "agent/monitor/agent_metrics.h"
#include "agent/monitor/node_monitor.h"
#include "agent/output/log_tree.h"
#include "agent/preflight/node_checks.h"
#include "agent/progress_pages.h"
#include "agent/timers/timer_pipe.h"
#include "agent/worker_environment.h"
#include "agent/worker_group.h"
#include "common/log_level.h"
#include "common/unique_fd.h"
#include "rendezvous/store_server/store_proxy.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::agent {

// The store of the current round on this node, or the node's proxy of it, and the listener for the
// next one. A listener is bound before it is announced. So no port is ever looked for twice.
class RoundStore {
 public:
  // With `send` what is served is a proxy of the store in the rendezvous: it takes one message.
  explicit RoundStore(boost::asio::io_context& io, std::function<void(std::string)> send = nullptr);
  ~RoundStore();

  // Listens for the next round; an unused listener from before is closed. An empty address means
  // all interfaces; port 0 any free one. A port that was asked for by number stays bound, and the
  // next round takes it over. Returns the port. All that the store will need is taken here, so that
  // serve() can't fail for want of it. Throws Error(kUnavailable) when the port is in use,
  // kResourceExhausted without a descriptor.
  std::uint16_t bind(const std::string& address, std::uint16_t port);

  // After bind(): serves an empty key space for `round` on the bound listener; what an older round
  // had is closed. `is_for_loopback`: for this machine's processes alone, whatever it is bound to.
  void serve(std::uint64_t round, bool is_for_loopback);

  // Calls `unused` once, from the io context, when the served key space has no client any more, or
  // after `limit`, or soon when none is served. Not after close() or destruction.
  void when_unused(std::chrono::milliseconds limit, std::function<void()> unused);

  // For a proxy: the connection to the rendezvous, and what comes over it (store_proxy.h).
  void linked();
  void unlinked();
  void received(std::string_view message);

  // Closes the key space of `round`; another round's is left alone.
  void close(std::uint64_t round);

 private:
  boost::asio::io_context& io_;
  UniqueFd listener_;        // for the next round
  UniqueFd fixed_listener_;  // kept while a port was asked for by number
  std::uint16_t fixed_port_ = 0;
  const std::function<void(std::string)> send_;  // empty: the store is here
  std::unique_ptr<store::StoreProxy> proxy_;     // of round_
  std::unique_ptr<store::StoreProxy> next_proxy_;
  bool is_linked_ = false;
  std::unique_ptr<store::StoreServer> server_;
  std::unique_ptr<store::StoreServer> next_server_;  // empty, for listener_
  std::uint64_t round_ = 0;                          // of server_, or of proxy_
  boost::asio::steady_timer patience_;
  std::function<void()> unused_;
};

struct ParkedWorkersOptions {
  WorkerGroupOptions group;
  WorkerEnvironmentOptions environment;
  WorkerCommand command;
  std::string socket_parent;
};

struct ParkedWorkersEvents {
  AgentSocketEvents socket;
  std::function<void(const std::string& why)> failed;  // one ended: no place can be given any more
  std::function<void()> gone;                          // after dismiss(): no process is left
};

// A spare's workers that run before their node has a place in a round (--prewarm): each does what
// it can, and says that it waits for its place (docs/agent-socket.md).
class ParkedWorkers {
 public:
  // Starts them. `pages` outlives this; their round becomes 0 (none). Throws Error when the socket
  // can't be made; a program that can't be started is `failed`.
  ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                ParkedWorkersOptions options, ParkedWorkersEvents events);

  // Gives each worker its place, environments by local rank; true: all have it, and group and
  // socket are to be taken. False: not all of them wait (any more), dismiss() them.
  bool place(const std::vector<std::vector<std::string>>& environments);

  std::unique_ptr<WorkerGroup> take_group() { return std::move(group_); }
  std::unique_ptr<AgentSocket> take_socket() { return std::move(socket_); }

  // SIGKILL: they have nothing to lose. `gone` follows.
  void dismiss();

  const std::string& socket_directory() const { return socket_->directory(); }

 private:
  void fail(const std::string& why);

  ParkedWorkersEvents events_;
  std::vector<std::vector<std::string>> started_with_;  // environments by local rank
  std::unique_ptr<AgentSocket> socket_;
  std::unique_ptr<WorkerGroup> group_;
  bool failed_ = false;
};

struct NodeAgentOptions {
  membership::AgentOptions machine;
  // The rendezvous' addresses as this node reaches it; machine.endpoints has them as given.
  std::vector<Endpoint> connect_to;
  membership::LinkSecurity security;  // of the connection to it
  WorkerGroupOptions workers;
  WorkerEnvironmentOptions environment;
  std::string socket_parent;   // directory for the workers' socket (agent_socket.h); empty: none
  HangLimits hang_limits;      // of the ranks of this node
  std::string stacks_program;  // ddprun-stacks; empty: no stacks of workers that hang
  WorkerCommand command;
  // Checked before each round's workers are started: a node that is not fit asks to be left out.
  // nullopt: unchecked, there is no other node to take its place.
  std::optional<NodeNeeds> needs;
  WorkerCgroups* cgroups = nullptr;  // of this node, outlives the agent; null: none
  std::shared_ptr<LogTree> logs;     // of workers.output; null: no files. Touched by the log thread
};

// Events for the agent's owner; called from the io context.
struct NodeAgentEvents {
  std::function<void(LogLevel, const std::string&)> tell;             // one line for the user
  std::function<void(const membership::agent_action::Exit&)> exited;  // last call, once
  // May be empty: a round begins for this node; all its workers run, or have ended already, pids by
  // local rank; 0: none was started in this round.
  std::function<void(const membership::StartRound&)> round_began;
  std::function<void(const std::vector<pid_t>&)> workers_run;
  // May be empty: each worker of this node that failed, not those that were stopped.
  std::function<void(const membership::WorkerFailure&)> worker_failed;
  // May be empty. These are for a record of the job. One is called for each worker that ended, in
  // whatever way. Others are called when the rendezvous has ended the round, and when no worker of
  // it is left here, or they wait to go on. Every few seconds comes the state of the node. With it,
  // and when the round's workers are gone, comes the progress of the ranks that write their page.
  std::function<void(const WorkerExit&)> worker_ended;
  std::function<void(const membership::agent_action::RoundOver&)> round_over;
  std::function<void()> workers_gone;
  std::function<void(const membership::NodeReport&)> node_read;
  std::function<void(const std::vector<RankProgress>&)> progressed;
  // May be empty: no rendezvous has taken this node in, and an attempt to reach one failed, for the
  // reason that is given; the next one follows.
  std::function<void(const std::string& why)> unreached;
};

// Destroy it only when the io context runs no more.
class NodeAgent {
 public:
  NodeAgent(boost::asio::io_context& io, Console& console, NodeAgentOptions options,
            NodeAgentEvents events);
  ~NodeAgent();

  // Begins; everything after this happens in the io context. `unfit`: why this node can't run its
  // workers, for the others; the rendezvous keeps it out.
  void start(const std::string& unfit = "");

  // A signal that ddprun itself got: the first one ends the job in order, a second one at once.
  void signal(int number, bool is_users = true);

  // Whoever started this ddprun from elsewhere is gone: this node leaves, its workers are stopped
  // by signal `number`, and the job goes on if it can.
  void abandon(const std::string& reason, int number);

  // This node is about to be taken away, or the job's time is over: the job's workers are asked to
  // leave at a step boundary.
  void warn(membership::Preempted warning);

  bool has_reached_rendezvous() const { return reached_; }
  int node_rank() const { return node_rank_; }  // of the latest round; −1 before the first
  // Files that this node's workers left in the latest round, and that stay.
  std::vector<std::string> flight_recorders() const { return failure_details_.flight_recorders(); }
  // The present values; may be called before start(). Waits for nothing.
  AgentMetrics metrics();

 private:
  std::function<void(std::string)> store_sender();
  void handle(membership::AgentEvent event);
  void heard(const membership::AgentEvent& link_event);
  void perform(const membership::AgentAction& action);
  void open_socket(std::uint64_t round, const std::string& directory);
  void open_timers(const std::string& directory);
  void on_first_step(std::uint64_t round, int local_rank, const FirstStep& first);
  void on_worker_line(std::uint64_t round, int local_rank, const WorkerLine& line);
  void spawn(const membership::StartRound& round);
  bool refuse_if_unfit();
  void refuse(const std::string& reason);
  std::string begin_logs(const membership::StartRound& round);
  membership::WorkerFailure failure_of(int local_rank, const std::string& note) const;
  std::vector<WorkerSpec> worker_specs(const membership::StartRound& round) const;
  void start_workers(const membership::StartRound& round);
  AgentSocketEvents socket_events();
  void prewarm();
  bool place_parked(const membership::StartRound& round);
  void parked_failed(const std::string& why);
  void parked_gone();
  void keep_workers();
  void kept_if_all_ask();
  void not_kept(const std::string& why);
  void go_on(const membership::StartRound& round);
  void watch(const membership::StartRound& round);
  std::optional<ProgressWords> read_page(int local_rank) const;
  void count_round(bool in_place);
  void count_failure(const membership::WorkerFailure& failure);
  void count_exit(const WorkerExit& exit);
  void read_node(membership::NodeReport report);
  std::optional<membership::NodeReport> take_node_report();
  void tell_node(const membership::NodeReport& report) const;
  void tell_progress() const;
  std::vector<CommunicatorState> communicators(int local_rank) const;
  void read_tail(const membership::agent_action::ReadTail& wanted);
  void ask_to_leave();  // leave_before_ is set
  void stop_workers(const membership::agent_action::StopWorkers& stop);
  WorkerGroupEvents group_events(std::uint64_t round);
  void all_run(std::uint64_t round);
  void workers_gone(std::uint64_t round);
  void wake_at(std::optional<Clock::time_point> at);
  void leave(const membership::agent_action::Exit& exit);

  Console& console_;
  boost::asio::io_context& io_;
  const NodeAgentOptions options_;
  const NodeAgentEvents events_;

  membership::AgentRunner runner_;
  membership::AgentLink link_;
  RoundStore store_;
  std::string log_directory_;  // of round_; empty: none
  FailureDetails failure_details_;
  std::shared_ptr<GpuMemory> gpus_;  // null: no GPUs here, or no round yet
  ProgressPages pages_;
  std::unique_ptr<AgentSocket> socket_;  // of round_; null: its workers run without
  std::shared_ptr<TimerPipe> timers_;    // of round_; null: none are wanted, or can't be had
  boost::asio::steady_timer timer_;
  std::unique_ptr<WorkerGroup> workers_;
  std::unique_ptr<ParkedWorkers> parked_;              // set: a spare's, or being dismissed
  std::shared_ptr<RoundCgroup> parked_cgroup_;         // of parked_; second owner: its group
  std::optional<membership::StartRound> spawn_later_;  // when parked_ has gone
  bool stop_later_ = false;                            // likewise: WorkersGone is due
  std::string unfit_;                                  // as start() had it
  std::optional<Clock::time_point> leave_before_;      // set: round_'s workers are to leave
  int leave_signal_ = 0;                               // by which those that handle it are told
  std::unique_ptr<HangMonitor> monitor_;  // of workers_, while they are not being stopped
  std::uint64_t round_ = 0;               // of workers_
  int node_rank_ = -1;
  RankNumbers ranks_;     // of workers_
  bool keeping_ = false;  // it is found out whether they can go on in place
  // Set: one has ended since it was to go on in place.
  std::optional<membership::WorkerFailure> late_failure_;
  bool waiting_in_place_ = false;         // they are kept, the next round has not begun
  std::map<int, FirstStep> first_steps_;  // of round_, by local rank, as they are said
  AgentCounts counts_;
  std::optional<Clock::time_point> waiting_since_;  // set: no round, nor workers
  bool failed_here_ = false;                        // a worker of this node, in round_
  bool stopping_ = false;                           // workers_ were told to stop
  NodeMonitor node_monitor_;
  WorkerUseReader worker_uses_;  // for metrics()
  bool linked_ = false;          // taken in, and connected
  bool reached_ = false;
  bool taken_in_ = false;           // by a rendezvous, as far as is known
  std::string undead_;              // processes that can't be killed, of an earlier round
  std::function<void()> farewell_;  // set: all is over here, but the store is kept for others
};

}  // namespace ddprun::agent
