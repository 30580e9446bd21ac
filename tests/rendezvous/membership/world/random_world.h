// SPDX-License-Identifier: Apache-2.0
// A rendezvous among agents that do anything: join, vanish, come back, repeat themselves, speak of
// old rounds, lie about numbers. The world knows the truth (whose workers live) and checks the
// rendezvous against it. Pure: the whole run follows from the seed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/fleet/random.h"
#include "rendezvous/messages/messages.h"
#include "tests/rendezvous/membership/world/world_rendezvous.h"

namespace ddprun::membership::testing {

class RandomWorld {
 public:
  struct Options {
    int num_events = 30;
    PlantedBug bug{};  // a bug of the rendezvous
    // The percentage of events in which the rendezvous is killed and started again with its
    // journal.
    int percent_of_restarts = 0;
    std::chrono::milliseconds keep_finished{0};  // of MachineOptions
  };

  RandomWorld(std::uint64_t seed, Options options);

  // Runs to the end. Returns the broken invariant and its time; nullopt: every invariant held.
  std::optional<std::string> run();

  std::uint64_t num_rounds() const { return num_rounds_; }
  std::uint64_t num_ends() const { return num_ends_; }
  std::uint64_t num_restarts() const { return num_restarts_; }
  // Questions about output that were asked and answered.
  std::uint64_t num_tails() const { return num_tails_; }

 private:
  static constexpr std::size_t kMaxAgents = 6;
  // Part of a text that says a message is of another round.
  static constexpr char kStale[] = "stale";

  struct Agent {
    std::string name;  // the host name in the status
    std::string addr, topology, role;
    std::string instance;
    std::string run_id;
    std::string session;
    Channel<AgentMessage> channel;
    std::optional<ConnectionId> connection;
    std::uint64_t live_round = 0;  // the round whose workers really live here; 0: none
    std::uint64_t inquiry = 0;     // the last inquiry that it was asked in
    bool asked_to_stop = false;
    bool asked_to_inspect = false;
    // The limit of the live round's workers, once they were asked to leave.
    std::optional<Clock::time_point> leaves_by;
    bool ended = false;  // it got JobEnd or Refused
    bool has_rank_wish = false;
    bool is_liar = false;
    bool is_old = false;                  // its version has no TailWanted
    std::vector<std::uint64_t> requests;  // the TailWanted requests that it got
    AgentEnvelope last_sent;
  };

  std::uint64_t random(std::uint64_t below) { return random_.below(below); }
  bool chance(int percent) { return random_.chance(percent); }

  void restart_rendezvous();
  void step(const Event& event);
  void receive(Agent& agent, const RendezvousEnvelope& envelope);
  void pass_time();
  void drain();

  // These are in random_world_agents.cc.
  void random_event();
  void join(Agent& agent);
  void say(Agent& agent, AgentMessage message);
  void say_something_true(Agent& agent);
  void say_something_of_ranks(Agent& agent, std::uint64_t round, bool asked);
  void say_something_stale(Agent& agent);
  void disconnect(Agent& agent);

  // These are in random_world_tails.cc.
  void look_at_ranks();
  void ask_for_tail();
  void tell_tail(Agent& agent);

  // Checks of facts that the agents know better than the rendezvous.
  void violated(const std::string& what);
  void check_live_round(const Agent& agent, std::uint64_t round, const char* what);
  void check_workers();

  const Options options_;
  bench::Random random_;
  WorldRendezvous rendezvous_;
  // The restart comes after the changes are kept, before anybody is told.
  bool restarts_in_next_step_ = false;
  JobSettings settings_;
  JobTimeouts timeouts_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::deque<Agent> agents_;
  std::map<ConnectionId, Agent*> by_connection_;
  ConnectionId next_connection_ = 1;
  int event_number_ = 0;
  std::uint64_t num_rounds_ = 0, num_ends_ = 0, num_restarts_ = 0, num_tails_ = 0;
  std::uint64_t num_requests_ = 0;
  std::optional<std::string> violation_;
};

}  // namespace ddprun::membership::testing
