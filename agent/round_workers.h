// SPDX-License-Identifier: Apache-2.0
// This node's workers of one round, from their command line to their end. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/console.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/node_agent_options.h"
#include "agent/progress_pages.h"
#include "agent/worker_environment.h"
#include "agent/worker_group.h"
#include "agent/worker_output.h"
#include "agent/worker_talk.h"
#include "common/clock.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

struct ParkedWorkersOptions {
  WorkerGroupOptions group;
  WorkerEnvironmentOptions environment;
  WorkerCommand command;
  std::string socket_parent;
};

struct ParkedWorkersEvents {
  AgentSocketEvents socket;
  // A worker has ended: no place can be given any more.
  std::function<void(const std::string& why)> failed;
  std::function<void()> gone;  // after dismiss(): no process is left
};

// The workers of a spare node that run before it has a place in a round (--prewarm). Each prepares
// what it can, and says that it waits for its place (docs/agent-socket.md).
class ParkedWorkers {
 public:
  // Starts them. `pages` outlives this; the pages' round becomes 0 (none). Throws Error when the
  // socket can't be made. If the program can't be started, `failed` is called.
  ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                ParkedWorkersOptions options, ParkedWorkersEvents events);

  // Gives each worker its place; `environments` are by local rank. True: all have it, and the
  // caller takes group and socket. False: not all of them wait (any more); call dismiss().
  bool place(const std::vector<std::vector<std::string>>& environments);

  std::unique_ptr<WorkerGroup> take_group() { return std::move(group_); }
  std::unique_ptr<AgentSocket> take_socket() { return std::move(socket_); }

  // Kills them with SIGKILL: they have nothing to lose. `gone` follows.
  void dismiss();

  const std::string& socket_directory() const { return socket_->directory(); }
  const std::shared_ptr<const RoundCgroup>& cgroup() const { return cgroup_; }  // null: none

 private:
  void fail(const std::string& why);

  ParkedWorkersEvents events_;
  std::vector<std::vector<std::string>> started_with_;  // environments by local rank
  const std::shared_ptr<const RoundCgroup> cgroup_;     // shared with group_
  std::unique_ptr<AgentSocket> socket_;
  std::unique_ptr<WorkerGroup> group_;
  bool failed_ = false;
};

class RoundWorkers {
 public:
  // All but `say` and `tell` outlive this.
  RoundWorkers(boost::asio::io_context& io, Console& console, const NodeAgentOptions& options,
               WorkerTalk& talk, Say say, Tell tell);

  // Called for the workers of all rounds.
  void listen(WorkerGroupEvents events) { events_ = std::move(events); }

  // ---- A round's begin ----

  // Called when this node has its place in the round. Releases the earlier round's workers.
  void begin(const membership::StartRound& round);
  // Makes the directory of the round's log files. If this fails, the round runs all the same, and
  // its output goes to the console.
  void begin_logs(const membership::StartRound& round);
  // Starts the workers, or says the failure of one that could not be started. `warm` outlives them;
  // null: there is no helper.
  void start(const membership::StartRound& round, WarmHelper* warm);

  // Starts a spare's workers without a place. `warm` is as in start(). Throws Error.
  std::unique_ptr<ParkedWorkers> park(WarmHelper* warm,
                                      std::function<void(const std::string& why)> failed,
                                      std::function<void()> gone);
  // Gives them their places; they are this round's workers then. False: not all of them wait, which
  // the user was told.
  bool adopt(ParkedWorkers& parked, const membership::StartRound& round);

  // Gives the living workers their places in `round`. `ended` is set if one has failed since it was
  // kept; then nobody gets a place. Returns that failure, or that of a worker that doesn't wait any
  // more.
  std::optional<membership::WorkerFailure> go_on(
      const membership::StartRound& round, const std::optional<membership::WorkerFailure>& ended);

  // ---- Until their end ----

  void lease(std::optional<Clock::time_point> until);
  // Asks them to leave at a step boundary. If none are started yet, they are asked when they are.
  void ask_to_leave(Clock::time_point before, int signal_number);
  bool are_asked_to_leave() const { return leave_.has_value(); }
  // Stops them. False: there are none.
  bool stop(const membership::agent_action::StopWorkers& stop);
  bool are_stopping() const { return stopping_; }

  // These are as in WorkerGroup; without workers they return nothing.
  bool any_ended_well() const { return group_ && group_->any_ended_well(); }
  std::vector<pid_t> pids() const;
  // Some workers must have been started.
  std::vector<pid_t> started() const { return group_->started(); }
  std::vector<std::optional<std::string>> why_cold() const { return group_->why_cold(); }
  bool look(std::uint64_t round, int global_rank,
            const std::function<void(LastOutput)>& done) const;

  int node_rank() const { return node_rank_; }  // of the latest round; −1 before the first

 private:
  struct Leave {
    Clock::time_point before;
    int signal_number = 0;  // sent to the workers that handle it
  };

  void pass_on_leave();
  std::vector<WorkerSpec> specs(const membership::StartRound& round) const;
  membership::WorkerFailure failure_of(int local_rank, const std::string& note) const;
  WorkerTalk::Places places(const std::string& socket_directory,
                            std::shared_ptr<const RoundCgroup> cgroup) const;

  boost::asio::io_context& io_;
  Console& console_;
  const NodeAgentOptions& options_;
  WorkerTalk& talk_;
  const Say say_;
  const Tell tell_;
  WorkerGroupEvents events_;

  int node_rank_ = -1;
  LogFolder logs_;                      // of the round; without a path: none
  std::unique_ptr<WorkerGroup> group_;  // null: no workers of the round were started
  std::optional<Leave> leave_;          // set: the workers are to leave
  bool stopping_ = false;
};

}  // namespace ddprun::agent
