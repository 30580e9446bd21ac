// SPDX-License-Identifier: Apache-2.0
// A random world of a pair: two sides with the rows of their journals, which they keep whatever
// happens; a mirror between them; agents with registers. Processes die and begin anew, connections
// and acknowledgements are lost, disks fail, time-outs come whenever they like. The rules, the
// rows, held jobs and registers are the shipped ones; a job is a number of decisions, each of which
// knows the one before it.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/ha/pair_rules.h"
#include "rendezvous/membership/held_jobs.h"
#include "rendezvous/membership/term_register.h"

namespace ddprun::ha::testing {

// A mistake in the protocol, which a world has to show.
enum class Bug {
  kNone,
  kCopyLeads,            // who has a copy leads with it, as if it were in sync
  kGivesUpWhatItWon,     // a term in which a job was won is given up
  kGoesOnBesideStandby,  // the same term goes on though a standby was in sync
  kSaysBeforeAck,        // a leader says what its standby has not acknowledged
};

class PairWorld {
 public:
  explicit PairWorld(std::uint64_t seed, Bug bug = Bug::kNone) : random_(seed), bug_(bug) {}

  // What was violated; nullopt: nothing.
  std::optional<std::string> run();

  struct Seen {
    int take_overs = 0, yields = 0, given_up = 0, syncs = 0, wins = 0, both_led = 0, ended = 0;
    int no_term = 0;  // could not be kept
  };
  const Seen& seen() const { return seen_; }
  // The last of what happened, a line each.
  std::string story() const;

 private:
  using Decision = std::uint64_t;  // of a job: the round of its rows
  struct Agent {
    std::uint64_t job = 0;
    membership::TermRegister follows;
    std::optional<int> at;
    membership::ConnectionId connection = 0;
    bool is_welcome = false, is_done = false;
    std::deque<membership::RendezvousMessage> inbox;
    std::deque<membership::AgentMessage> outbox;
  };
  struct Side {
    // Kept.
    journal::Rows rows;
    std::optional<journal::Rows> before;  // the last batch; of kSynced
    // Of the process.
    bool is_up = false, leads = false, has_led = false, may_have_decided = false;
    bool distrusts_disk = false;  // which can't be written
    std::string yielded_to;
    TermRow term;
    std::unique_ptr<membership::HeldJobs> held;
    std::set<std::uint64_t> won;
    std::optional<PairState> heard;  // what the other one said to its call
  };
  enum class Stage { kNone, kCopying, kCopied, kShared, kSaid, kSynced };
  // Of the mirror; each end notices by itself that it is cut.
  struct Session {
    int leader = 0;
    Stage stage = Stage::kNone;
    bool is_cut = false, leader_knows = false, standby_knows = false, is_yours = false;
  };

  // pair_world_sides.cc
  PairState state_of(int side) const;
  void start(int side);
  void die(int side);
  void call(int side);
  void act(int side);
  void lead(int side);
  void yield(int side, const PairState& theirs);
  void stop_leading(int side);
  void deposed(int side);
  void heard_given_up(int side, const TermLine& given_up);
  bool may_have_decided(int side) const;
  bool mirrors(int side) const;
  bool is_shared(int side) const;
  void stand_alone(int side, bool is_certain);

  // pair_world_mirror.cc
  static journal::Rows own_rows(const journal::Rows& rows, bool is_own);
  // Kept, and what follows may be said.
  bool commit(int side, const journal::Batch& batch);
  void keep(int side, const journal::Batch& batch);
  void mirror(int side);
  void go_on_mirroring();
  void cut();
  void notice(int side);
  void stop_leader(int side);
  void stop_standby(int side);
  void lose_disk(int side);

  // pair_world_jobs.cc
  void begin_jobs();
  void take(int side, const membership::HeldJobs::Outcome& outcome);
  void feed(int side, const membership::Event& event);
  void join(const std::string& name, Agent& agent, int side);
  void answer(int side, const membership::event::Message& join);
  void hear(Agent& agent, const membership::RendezvousMessage& message);
  void lose(Agent& agent);
  void agent_turn();
  void decide_job(int side, std::uint64_t job);
  void end_job(int side, std::uint64_t job);
  void say(int side, std::uint64_t job, Decision decision);
  Agent* agent_at(int side, membership::ConnectionId connection);
  journal::Rows job_rows(std::uint64_t job, Decision round, bool is_over) const;
  Decision decision_in(const journal::Rows& rows, std::uint64_t job) const;  // 0: no such job
  bool is_over_in(const journal::Rows& rows, std::uint64_t job) const;
  std::vector<std::uint64_t> jobs_in(const journal::Rows& rows) const;
  // While there are faults less than a job is held for, in all.
  static constexpr std::chrono::milliseconds kMostTime{60'000};
  void pass(std::chrono::milliseconds time);

  // pair_world.cc
  void turn();
  void settle();
  bool is_led_by_one() const;
  bool is_cut_off(const Agent& agent) const;
  void violate(const std::string& what);
  void tell(int side, const std::string& what);
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  std::string new_term();

  std::mt19937_64 random_;
  const Bug bug_;
  bool has_faults_ = true;
  bool ends_often_ = false;  // jobs do
  std::array<Side, 2> sides_;
  Session session_;
  std::map<std::string, Agent> agents_;
  std::map<Decision, Decision> parents_;
  std::map<std::uint64_t, Decision> last_said_;  // of each job
  std::set<std::uint64_t> ended_;                // jobs whose end was said
  std::set<std::uint64_t> may_be_lost_;          // those that were held for too long
  std::set<std::string> dead_terms_;  // that ended, and that nodes which voted in them stay in
  std::set<std::pair<std::uint64_t, std::string>>
      lost_ends_;  // of jobs, likewise, each in its term
  Decision last_decision_ = 0;
  int num_terms_ = 0;
  membership::ConnectionId last_connection_ = 0;
  Clock::time_point now_{std::chrono::hours(1)};
  std::optional<std::string> violation_;
  std::deque<std::string> story_;
  Seen seen_;
};

}  // namespace ddprun::ha::testing
