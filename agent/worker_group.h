// SPDX-License-Identifier: Apache-2.0
// One node's workers of one round: starts all, reports each exit, stops all. The workers are
// children of a warden (docs/warden.md), so that none survives the agent. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/monitor/agent_metrics.h"
#include "agent/output/log_queue.h"
#include "agent/output/output_options.h"
#include "agent/warm/warm_helper.h"
#include "agent/worker_output.h"
#include "common/clock.h"
#include "common/cpu_set.h"
#include "common/death_limits.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

struct WorkerSpec {
  int global_rank = 0;  // negative: not known yet, see WorkerGroup::adopt()
  int local_rank = 0;
  std::vector<std::string> argv;         // argv[0] is the file to exec, already looked up
  std::vector<std::string> environment;  // "NAME=value", complete: nothing else is inherited
  std::string working_directory;         // empty: the agent's
};

struct WorkerGroupOptions {
  // The plan of the workers' output, and which worker gets the agent's stdin. docs/output.md says
  // which way each stream takes.
  OutputOptions output;
  bool several_workers = false;  // on this node
  LogFolder logs;                // of the round (LogTree::begin_attempt); without a path: none
  std::vector<CpuSet> cpus;      // CPUs that a worker may use, by its local rank; empty: ddprun's
  // The path of ddprun-warden; empty: beside this program, else in ../libexec/ddprun.
  std::string warden_path;
  // The directory of the round's AgentSocket. The warden removes it when no worker is left. Empty:
  // there is none.
  std::string socket_directory;
  // The helper that has the workers' imports, so that `num_warm` of them start faster; null: none.
  // It outlives the group.
  WarmHelper* warm = nullptr;
  int num_warm = 0;
  // The round's cgroup, with a leaf for each worker; null: none. Shared with the readers of its
  // counts.
  std::shared_ptr<RoundCgroup> cgroup;
  // Times after SIGKILL. Processes that still exist are named after kill_notice, and given up after
  // kill_limit.
  std::chrono::milliseconds kill_notice{5'000};
  std::chrono::milliseconds kill_limit{kDeathLimit};
};

// Describes the end of a worker that failed, or that was stopped.
WorkerExit exit_of(const membership::WorkerFailure& failure, ExitKind kind);

// Events for a group's owner; called from the io context, never from inside a WorkerGroup call. The
// owner may call stop() or destroy the group from inside a call.
struct WorkerGroupEvents {
  // Every exec succeeded. Comes before any worker_failed or all_succeeded of a worker that ran. It
  // never comes if the exec of one worker failed.
  std::function<void()> all_running;
  // Called for each failure, the first one first, with the time at which the warden saw it. The
  // worker's output is already on its way to the console. Not called for workers that end after
  // stop(): they are only victims. A worker that failed before stop() is reported even if its
  // report comes later.
  std::function<void(membership::WorkerFailure, Clock::time_point)> worker_failed;
  // Called for each worker that has ended otherwise: with success, as ask_to_leave() allows, or
  // because it was stopped. It comes before the events that follow from it. May be empty.
  std::function<void(const WorkerExit&)> ended;
  std::function<void()> all_succeeded;  // every worker exited with 0, before stop()
  // As all_succeeded, but after ask_to_leave(), when at least one worker exited with 75. May be
  // empty.
  std::function<void()> all_left;
  // The lease ran out, and the warden kills the workers: as if stop(0) had been called.
  std::function<void()> fenced;
  // These processes didn't end though they were killed, and the group stops waiting for them.
  // all_gone follows all the same. May be empty.
  std::function<void(const std::string& who)> given_up;
  // Called once after stop(): no process of the group is left, not even one that left its session.
  // The console has got the output, but may still be writing it (Console::finish).
  std::function<void()> all_gone;
};

class WorkerGroup {
 public:
  // Starts no process yet. node_rank goes into failure reports. `console` outlives the group and
  // may serve several, one after the other.
  WorkerGroup(boost::asio::io_context& io, Console& console, WorkerGroupOptions options,
              int node_rank, WorkerGroupEvents events);
  // Has the warden kill what still runs, at once, and doesn't wait for it.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Starts the warden, which start() does otherwise. Throws as start().
  void launch_warden();

  // Starts all workers, once. A worker that can't be executed is reported as worker_failed, with a
  // note that names the file. Its exit_code is 127 (not found) or 126 (not executable). If the
  // warden is killed its workers die with it, and are reported with a note that says so. Throws
  // Error when the warden can't be started or descriptors run out; nothing runs then.
  void start(std::vector<WorkerSpec> workers);

  // Sends `signal_number` and SIGCONT to every worker's process group. A worker's data loaders get
  // them only when the worker has ended or half of `grace` is over (docs/warden.md). When no worker
  // is left, the processes that they left behind get SIGTERM, if the signal did not reach them or
  // they ignore it. After `grace`, counted from this call, every descendant gets SIGKILL. all_gone
  // follows, also when nothing was started. A further call can only make the SIGKILL come sooner.
  void stop(std::chrono::milliseconds grace, int signal_number = SIGTERM);

  // Sets until when the workers may live, unless a later time is given. The warden enforces it,
  // also when this process stands still. nullopt (at first): for ever. stop() may come sooner.
  void lease(std::optional<Clock::time_point> until);

  // Gives workers that were started with negative global ranks their places: the ranks from
  // `first_global_rank` on, by local rank. `events` are called from now on, but not all_running.
  // The workers' log files are in `logs` (without a path: none).
  void adopt(int node_rank, int first_global_rank, const LogFolder& logs, WorkerGroupEvents events);

  // Lets the living workers go on in the next round (docs/inplace.md), after others have failed,
  // which was told. Each gets a global rank, from `first_global_rank` on, by local rank. `events`
  // are called from now on, but not all_running. Processes that the failed ones left in their
  // sessions are killed.
  void go_on(int node_rank, int first_global_rank, WorkerGroupEvents events);

  // Whether a worker has ended with success, or as ask_to_leave() allows.
  bool any_ended_well() const;

  // Calls `done` with the last output of the worker of a global rank, also after its end; as
  // WorkerOutput::look(). False: no such worker is here, or it was not started yet.
  bool look(int global_rank, const std::function<void(LastOutput)>& done) const;

  // Returns the live workers' processes by local rank; 0: not started yet, or ended.
  std::vector<pid_t> pids() const;
  // Returns the same, including workers that have ended in this round; 0: not started in it.
  std::vector<pid_t> started() const;

  // Returns by local rank why a worker began without its imports (docs/warm.md). Empty: it has
  // them. nullopt: it has not begun in this round, or no imports were asked for.
  std::vector<std::optional<std::string>> why_cold() const;

  // Asks the workers to leave: from now on an exit with 75 is no failure. The first call sends the
  // signal to those that have a handler for it (docs/warden.md).
  void ask_to_leave(int signal_number);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the io context's handlers that are under way
};

}  // namespace ddprun::agent
