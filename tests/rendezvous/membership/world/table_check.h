// SPDX-License-Identifier: Apache-2.0
// The invariants of the rendezvous, checked on each of its steps. They hold for its decisions,
// messages and waits, whatever its agents do. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/machine.h"

namespace ddprun::membership::testing {

class TableCheck {
 public:
  // looks_always: it looks at all jobs after each step; else only when a round starts or a job
  // ends.
  explicit TableCheck(bool looks_always = true) : looks_always_(looks_always) {}

  // Notes an agent's message, before the step. A Join tells who the agent is and what it asks for.
  void heard(const event::Message& message);
  void closed(ConnectionId connection) { peers_.erase(connection); }
  void restarted() { peers_.clear(); }

  // Checks the result of one event. Returns the fault.
  std::optional<std::string> stepped(const JobTable& table, const Event& event,
                                     const Actions& actions, Clock::time_point now);
  // `deadline`: the time at which the rendezvous will look again by itself.
  static std::optional<std::string> waits(const JobTable& table,
                                          std::optional<Clock::time_point> deadline);

  // For an event that must change nothing: the state before, then the check of its result.
  // `may_close`: the event's number may be wrong, and ends its connection.
  static std::string fingerprint(const JobTable& table);
  static std::optional<std::string> ignored(const std::string& before, const JobTable& table,
                                            const Actions& actions, bool may_close = false);
  // The state that a restart must not change.
  static std::string kept_text(const JobTable& table, std::chrono::milliseconds keep_finished,
                               Clock::time_point now);

  // The last round that began in the connection's job; nullopt: the job isn't known.
  std::optional<std::uint64_t> live_round_of(ConnectionId connection) const;
  std::uint64_t live_round(const std::string& run_id) const;
  // A question about a rank's output goes to an agent that is there and can answer it.
  std::optional<std::string> asked_for_tail(const std::string& run_id, std::uint64_t request,
                                            const TailRoute& route, const Actions& actions) const;

 private:
  struct Peer {
    std::string run_id, role;
    std::string node;     // the node's key in JobStatus::excluded
    bool is_old = false;  // its version has no TailWanted
    bool leaves = false;  // it gets an end of its own
  };
  struct Asked {  // the wishes of all Joins of a run id so far
    int min_nodes = 0, max_nodes = 0, max_restarts = 0, max_node_losses = 0;
    int num_workers = 0;  // 0: they differ
  };
  struct Told {
    StartRound start;
    const Peer* peer = nullptr;  // nullptr: the node is gone
  };
  void violated(std::string what);
  void take_back_exclusions(const std::vector<JobStatus>& jobs);
  void check_round(const std::string& run_id, std::uint64_t round, const Actions& actions);
  void check_ranks(const std::string& run_id, std::uint64_t round, const std::vector<Told>& told);
  void check_roles(std::vector<Told> told);
  void check_ends(const std::vector<JobStatus>& jobs, const Actions& actions);
  void check_tails(const Event& event, const Actions& actions);
  void check_jobs(const std::vector<JobStatus>& jobs, Clock::time_point now);
  void check_budgets(const JobStatus& job);
  void check_costs(const JobStatus& job, Clock::time_point now);

  const bool looks_always_;
  std::optional<Clock::time_point> began_;
  std::map<ConnectionId, Peer> peers_;
  std::map<std::string, Asked> asked_;
  std::map<std::string, std::uint64_t> live_rounds_;
  std::map<std::string, std::uint64_t> last_rounds_;       // of live jobs
  std::map<std::string, int> ends_;                        // exit codes of jobs that have ended
  std::map<std::string, std::set<std::string>> excluded_;  // of live jobs: node keys
  std::set<std::string> shared_ids_;  // run ids of several jobs, also of ended ones
  std::set<std::string> stopping_;    // jobs whose round was being stopped
  std::optional<std::string> problem_;
};

}  // namespace ddprun::membership::testing
