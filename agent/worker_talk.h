// SPDX-License-Identifier: Apache-2.0
// The talk of this node's workers with their agent during a round: over the socket, on the progress
// pages, through the timers' pipe. A worker that has failed also leaves files. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/failure_details.h"
#include "agent/gpu/gpu_error.h"
#include "agent/hang/rank_sample.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/node_agent_options.h"
#include "agent/progress_pages.h"
#include "agent/timers/timer_pipe.h"
#include "agent/worker_environment.h"
#include "common/operation_facts.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

class WorkerTalk {
 public:
  // `options` and `writer` outlive this. `writer` is as in FailureDetails.
  WorkerTalk(boost::asio::io_context& io, const NodeAgentOptions& options, LogWriter* writer,
             Say say, Tell tell);

  // Called when a worker asks to go on in place.
  void on_recovery_asked(std::function<void()> call) { recovery_asked_ = std::move(call); }

  // ---- A round, from its begin to its workers' end ----

  // Called when a round begins. Ends the earlier round's talk.
  void begin(std::uint64_t round, int first_global_rank);

  // The places of one round's talk.
  struct Places {
    std::string socket_directory;               // empty: none
    std::string log_directory;                  // empty: none
    std::shared_ptr<const RoundCgroup> cgroup;  // null: none of their own
    std::function<std::vector<pid_t>()> pids;   // by local rank; 0: doesn't run
  };
  // Called before the workers run. If there can be no socket, they run without it, which the user
  // is told.
  void open(Places places);
  // Does the same for a spare's workers, which have a socket already. take() follows when they have
  // their places.
  void expect(Places places);
  void take(std::unique_ptr<AgentSocket> socket);
  // Returns the socket's events. Their lines are handled once the socket is taken.
  AgentSocketEvents socket_events();
  // Makes the round's pages. Throws as ProgressPages::begin_round().
  void begin_pages();

  // Called when all workers run.
  void workers_run(const std::vector<pid_t>& pids) { details_.workers_run(pids); }
  // Called when the workers of these local ranks are left, and go on in `round`.
  void go_on(std::uint64_t round, RankNumbers ranks);
  // Called when they have gone: read_page() finds nothing more.
  void close();

  std::uint64_t round() const { return round_; }       // the latest; 0: none
  const RankNumbers& ranks() const { return ranks_; }  // those of round()
  // null: the workers run without a socket, or none run.
  AgentSocket* socket() { return socket_.get(); }
  ProgressPages& pages() { return pages_; }
  const ProgressPages& pages() const { return pages_; }
  // Returns the paths for the environment of a worker.
  WorkerPaths paths(int local_rank) const;

  // ---- From the workers ----

  // nullopt: the worker doesn't write its page.
  std::optional<ProgressWords> read_page(int local_rank) const;
  // Returns how far it is, from its page, else from what its observer has seen (docs/observe.md).
  std::optional<ProgressWords> read_progress(int local_rank) const;
  // Returns its program's framework, as its observer has reported it; empty: not reported.
  std::string framework(int local_rank) const;
  std::vector<CommunicatorState> communicators(int local_rank) const;
  // Reads all that has arrived, so that a worker's last lines come before the news of its end.
  void read_pending();
  // Adds all else that is known of a worker that has failed. Must be called at once.
  void explain(membership::WorkerFailure& failure);
  std::vector<std::string> flight_recorders() const { return details_.flight_recorders(); }

  // ---- To the workers ----

  void ask_for_records();
  // Does the same as AgentSocket::when_recorded(); without a socket it calls at once.
  void when_recorded(std::function<void()> call);

 private:
  bool open_socket(const std::string& directory);
  void open_timers(const std::string& directory, std::function<std::vector<pid_t>()> pids);
  void heard(int local_rank, const WorkerLine& line);
  void first_step_done(int local_rank, const FirstStep& first);

  boost::asio::io_context& io_;
  const NodeAgentOptions& options_;
  const Say say_;
  const Tell tell_;
  std::function<void()> recovery_asked_;

  std::uint64_t round_ = 0;
  RankNumbers ranks_;
  std::map<int, FirstStep> first_steps_;   // by local rank, as they are reported
  std::map<int, std::string> frameworks_;  // the same
  FailureDetails details_;
  std::shared_ptr<GpuErrorLog> gpu_errors_;  // null: the kernel's log can't be read
  ProgressPages pages_;
  std::unique_ptr<AgentSocket> socket_;
  std::string observer_;  // its folder, beside the socket; empty: programs are not observed
  std::shared_ptr<TimerPipe> timers_;  // null: no timers are wanted, or there can be none
};

}  // namespace ddprun::agent
