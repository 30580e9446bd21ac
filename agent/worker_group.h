// SPDX-License-Identifier: Apache-2.0
// One node's workers of one round: start all, hear of each exit, stop all. The workers are children
// of a warden (agent/warden.h), so that nothing survives the agent. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/membership/messages.h"

namespace ddprun::agent {

struct WorkerSpec {
  int global_rank = 0;
  int local_rank = 0;
  std::vector<std::string> argv;         // argv[0] is the file to exec, already looked up
  std::vector<std::string> environment;  // "NAME=value", complete: nothing is inherited beside it
};

struct WorkerGroupOptions {
  std::chrono::milliseconds stop_grace{30'000};  // SIGTERM → SIGKILL
  bool prefix_output = false;                    // "[rank] line"; off: the worker inherits the terminal
};

// What a group tells its owner; called from the io context, never from inside a WorkerGroup call.
struct WorkerGroupEvents {
  std::function<void()> all_running;                              // every exec succeeded
  std::function<void(membership::WorkerFailure)> worker_failed;   // each failure, first one first
  std::function<void()> all_succeeded;                            // every worker exited with 0
  std::function<void()> all_gone;  // after stop(): no process of the group is left; output drained
};

class WorkerGroup {
 public:
  // Spawns nothing yet. node_rank goes into failure reports.
  WorkerGroup(boost::asio::io_context& io, WorkerGroupOptions options, int node_rank,
              WorkerGroupEvents events);
  ~WorkerGroup();  // kills what still runs, without grace
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Starts all workers, once. A worker that can't be executed is reported as worker_failed with
  // exit_code 127 (not found) or 126 (not executable) and a note.
  void start(std::vector<WorkerSpec> workers);

  // SIGTERM to every worker's process group, SIGKILL after the grace, then to every descendant.
  // all_gone follows. A second call with a shorter grace shortens the wait.
  void stop(std::chrono::milliseconds grace);

  // Forwards a signal to every worker's process group.
  void signal(int signal_number);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::agent
