// SPDX-License-Identifier: Apache-2.0
// A rendezvous among agents that do anything: join, vanish, come back, repeat themselves, speak of
// old rounds, lie about numbers. Knows the truth (whose workers live) and checks the machine
// against it. Pure: the whole run follows from the seed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/channel.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::membership::testing {

class RandomWorld {
 public:
  struct Options {
    int num_events = 30;
    // The machine is made to accept messages of this type ("workers_stopped") whatever round they
    // speak of: what the checks must notice.
    std::string accepted_when_stale;
    // How often an event is that the rendezvous is killed and started again with its journal.
    int percent_of_restarts = 0;
    std::chrono::milliseconds keep_finished{0};  // MachineOptions'
  };

  RandomWorld(std::uint64_t seed, Options options);

  // Runs to the end. nullopt: every invariant held; else which one broke, and when.
  std::optional<std::string> run();

  std::uint64_t num_rounds() const { return num_rounds_; }
  std::uint64_t num_ends() const { return num_ends_; }
  std::uint64_t num_restarts() const { return num_restarts_; }
  std::uint64_t num_tails() const { return num_tails_; }  // that were asked for and said

 private:
  static constexpr std::size_t kMaxAgents = 6;
  static constexpr char kStale[] = "stale";  // in what a message of another round says

  struct Agent {
    std::string name;  // its host name in the status
    std::string addr, topology, role;
    std::string instance;
    std::string run_id;
    std::string session;
    Channel<AgentMessage> channel;
    std::optional<ConnectionId> connection;
    std::uint64_t live_round = 0;  // whose workers really live here; 0 = none
    std::uint64_t inquiry = 0;     // the last one that it was asked in
    bool asked_to_stop = false;
    bool asked_to_inspect = false;
    std::optional<Clock::time_point> leaves_by;  // live_round's workers were asked to leave
    bool ended = false;                          // got JobEnd or Refused
    bool has_rank_wish = false;
    bool is_liar = false;
    bool is_old = false;                  // it speaks a version without TailWanted
    std::vector<std::uint64_t> requests;  // of TailWanted, that it was asked
    AgentEnvelope last_sent;
  };

  std::uint64_t random(std::uint64_t below);
  bool chance(int percent) { return random(100) < static_cast<std::uint64_t>(percent); }

  std::unique_ptr<JobTable> make_table();
  void restart_rendezvous();
  void step(const Event& event);
  void receive(Agent& agent, const RendezvousEnvelope& envelope);
  void keep(const journal::Batch& batch);
  void pass_time();
  void drain();

  // random_world_agents.cc
  void random_event();
  void join(Agent& agent);
  void say(Agent& agent, AgentMessage message);
  void say_something_true(Agent& agent);
  void say_something_of_ranks(Agent& agent, std::uint64_t round, bool asked);
  void say_something_stale(Agent& agent);
  void disconnect(Agent& agent);

  // random_world_tails.cc
  void look_at_ranks();
  void ask_for_tail();
  void tell_tail(Agent& agent);
  void check_tail(const event::Message& message, const Actions& actions);

  // random_world_checks.cc
  void violated(const std::string& what);
  std::string status_text() const;
  std::string kept_text() const;
  void take_back_exclusions();
  void check_kept();
  // `before`: what the status was. A message of another round changes nothing.
  void check_ignored(const std::string& type, const std::string& before, const Actions& actions);
  void check_live_round(const Agent& agent, std::uint64_t round, const char* what);
  void check_costs(const JobStatus& job);
  // `starts`: of one round; with the nodes' roles.
  void check_roles(std::vector<std::pair<StartRound, std::string>> starts);
  void check_ranks(const std::vector<StartRound>& starts);
  void check_jobs();

  const Options options_;
  std::uint64_t state_;
  int num_sessions_ = 0;
  std::unique_ptr<JobTable> table_;
  journal::Rows journal_;
  bool restarts_in_next_step_ = false;  // after its changes are kept, before anybody is told
  JobSettings settings_;
  JobTimeouts timeouts_;
  const Clock::time_point began_{std::chrono::hours(1)};
  Clock::time_point now_ = began_;
  std::map<std::string, std::set<std::string>> excluded_;  // of live jobs: node keys
  std::set<std::string> stopping_;                         // jobs whose round was being stopped
  std::deque<Agent> agents_;
  std::map<ConnectionId, Agent*> by_connection_;
  std::map<std::string, std::uint64_t> round_of_job_;
  ConnectionId next_connection_ = 1;
  int event_number_ = 0;
  std::uint64_t num_rounds_ = 0, num_ends_ = 0, num_restarts_ = 0, num_tails_ = 0;
  std::uint64_t num_requests_ = 0;
  std::optional<std::string> violation_;
};

}  // namespace ddprun::membership::testing
