// SPDX-License-Identifier: Apache-2.0
// Accounts for a job's time, with one record per round and their sum, also as JSON. ETTR (effective
// training time ratio) is the share of the job's time in which all workers ran. Pure.
#pragma once

#include <array>
#include <boost/describe/class.hpp>
#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// The seconds of a round's phases, in their order. "→ x" means from the previous phase's end until
// x.
struct PhaseSeconds {
  double rendezvous = 0;     // the previous round is over (or the job began) → members are chosen
  double warming = 0;        // taken from `spawn`: imports before the start (docs/warm.md)
  double spawn = 0;          // → all workers run
  double communicators = 0;  // taken from `first_step`: making communicators
  double first_step = 0;     // → every node has finished a step, if they report steps
  double running = 0;        // → the event that ended the round
  double redone = 0;         // taken from `running`: last steps, which a later round did again
  double detect = 0;         // → the rendezvous noticed that event
  double stop = 0;           // → no worker is left
  double delay = 0;          // → a crash loop's delay is over: the next round may begin

  double lost() const {
    return rendezvous + warming + spawn + communicators + first_step + redone + detect + stop +
           delay;
  }
  // Returns running ÷ all, the effective training time ratio; nullopt: no time has been counted.
  std::optional<double> ettr() const;
  PhaseSeconds& operator+=(const PhaseSeconds& other);
  PhaseSeconds& operator-=(const PhaseSeconds& other);
};

inline constexpr std::array kPhases = {std::pair("rendezvous", &PhaseSeconds::rendezvous),
                                       std::pair("warming", &PhaseSeconds::warming),
                                       std::pair("spawn", &PhaseSeconds::spawn),
                                       std::pair("communicators", &PhaseSeconds::communicators),
                                       std::pair("first_step", &PhaseSeconds::first_step),
                                       std::pair("running", &PhaseSeconds::running),
                                       std::pair("redone", &PhaseSeconds::redone),
                                       std::pair("detect", &PhaseSeconds::detect),
                                       std::pair("stop", &PhaseSeconds::stop),
                                       std::pair("delay", &PhaseSeconds::delay)};

struct RoundRecord {
  std::uint64_t round = 0;
  int num_nodes = 0, num_spares = 0;
  int world_size = 0;
  bool in_place = false;  // with the previous round's workers (docs/inplace.md)
  // The nodes that differ from the previous round's, at most kMaxNames of each.
  std::vector<std::string> came, went;
  std::vector<std::string> stragglers;  // slow ranks at its end (hang_inquiry.cc)
  std::string first_failure;            // if failed workers ended it: the first one,
  std::vector<std::string> victims;     // and the later ones (RoundFailures)
  int num_warm = 0;                     // workers that began with their imports done (docs/warm.md)
  std::string cold;                     // why another one did not; empty: none, or not asked for
  std::string cause;                    // why it ended; empty: it is live, or all workers succeeded
  // As the job counts steps over restarts; 0: not reported.
  std::uint64_t first_step = 0, last_step = 0;
  std::uint64_t steps_redone = 0;  // those of its steps that a later round did again
  PhaseSeconds seconds;

  static constexpr std::size_t kMaxNames = 64;
};

class Ledger {
 public:
  using TimePoint = Clock::time_point;
  explicit Ledger(TimePoint job_began = {}) : phase_began_(job_began) {}

  // The calls of a round, in this order: started(), running(), first_step(), over(), stopped().
  // Both running() and first_step() may be missing. `members` are the nodes' names in any order.
  // `detect` is the time from the round's real end to `now`.
  void started(RoundRecord record, std::vector<std::string> members, TimePoint now);
  // Called for each node whose workers run, before running(). The slowest node's imports count for
  // the round.
  void node_runs(const WorkersRunning& node);
  void running(TimePoint now);
  // Called when every node has finished its first step of the round; `step` is its number, 0: none.
  // An earlier round may have done steps from this number on; they are done again now. Their time
  // in that round, by its own pace, counts as lost. `connecting` is the time that the slowest
  // worker took to make communicators.
  void first_step(std::uint64_t step, Clock::duration connecting, TimePoint now);
  void over(const std::string& cause, Clock::duration detect, TimePoint now);
  // The next round doesn't begin before `delayed_until`.
  void stopped(TimePoint now, std::optional<TimePoint> delayed_until = {});
  // Called with any node's last finished step, before stopped(). The largest one is kept.
  void last_step(std::uint64_t step);
  // Called for the round that is being stopped, before stopped().
  void name_failures(std::string first, std::vector<std::string> victims);
  // Replaces the cause that over() got; called before stopped().
  void name_cause(std::string cause);
  // Called for the live round, before over().
  void name_stragglers(std::vector<std::string> names);

  // Returns the last kKept rounds, with the live one.
  const std::deque<RoundRecord>& rounds() const { return rounds_; }
  // Returns the names of the last round's members, sorted.
  const std::vector<std::string>& last_members() const { return members_; }
  // Returns the sums over all rounds. Only the finished phases of the live round count.
  const PhaseSeconds& total() const { return total_; }
  // Returns the seconds since the present phase began.
  double in_phase(TimePoint now) const {
    return std::chrono::duration<double>(now - phase_began_).count();
  }
  // Returns total() plus the present phase, as if it ended now, without time for `detect`.
  PhaseSeconds total_until(TimePoint now) const;
  // Returns the member to which the present phase's time will be added.
  double PhaseSeconds::*phase_member() const;
  TimePoint phase_began() const { return phase_began_; }
  TimePoint delayed_until() const { return delayed_until_; }
  // Does not count the present phase.
  std::optional<double> ettr() const { return total_.ettr(); }
  // Returns one line for people if there were several rounds, else "": "3 rounds; workers ran 94.2
  // of 95.0 s (99.2 %); lost: 0.15 s noticing, …".
  std::string summary() const;

  static constexpr std::size_t kKept = 100;

  // Called after reading from a journal. If that has no round, the ledger goes on as between two
  // rounds.
  void restored() {
    if (rounds_.empty()) phase_ = Phase::kRendezvous;
  }

  // For the journal: it differs after each change.
  std::uint64_t version() const { return version_; }

 private:
  enum class Phase { kRendezvous, kSpawn, kRunning, kStepping, kStop };
  friend Phase last_of(Phase) { return Phase::kStop; }
  bool is_live() const;
  void count_redone(std::uint64_t first_step);
  // Between two rounds: returns the end of the delay, but at most `now`. Else the phase's begin.
  TimePoint delay_end(TimePoint now) const;
  // Adds the time since the phase began to `phase` of the last round. The next phase begins.
  void close_phase(double PhaseSeconds::*phase, TimePoint now);

  std::deque<RoundRecord> rounds_;
  std::vector<std::string> members_;  // of the last round, sorted
  PhaseSeconds total_;
  std::uint64_t num_rounds_ = 0;
  bool reports_steps_ = false;  // some round has reported a step
  Phase phase_ = Phase::kRendezvous;
  TimePoint phase_began_;
  TimePoint delayed_until_{};             // in kRendezvous: the end of a crash loop's delay
  std::chrono::microseconds warming_{0};  // in kSpawn: the longest of a node
  std::uint64_t version_ = 0;

  BOOST_DESCRIBE_CLASS(Ledger, (), (), (),
                       (rounds_, members_, total_, num_rounds_, reports_steps_, phase_,
                        phase_began_, delayed_until_, warming_))
};

// Kinds of events that end a round; they are few, so that metrics can count them (docs/metrics.md).
// The journal has their numbers, so new ones go to the end.
enum class RoundEnd {
  kOther,         // ended by an older rendezvous, without kinds
  kSuccess,       // all workers succeeded
  kWorkerFailed,  // a worker failed, or left unasked
  kHang,
  kNodeLost,
  kNodeLeft,       // by its user, or a worker asked to exclude it
  kNodeJoined,     // --on-join=restart
  kPreempted,      // a node was about to be taken away
  kTimeLimit,      // the job's time is over
  kWorkerRequest,  // a worker asked to stop the job
  kTimeout,        // not all workers started, or ended, in time
};
inline constexpr RoundEnd last_of(RoundEnd) { return RoundEnd::kTimeout; }

inline constexpr std::array kRoundEndNames = {
    "other",       "success",   "worker_failed", "hang",           "node_lost", "node_left",
    "node_joined", "preempted", "time_limit",    "worker_request", "timeout"};
inline constexpr std::size_t kNumRoundEnds = kRoundEndNames.size();
static_assert(kNumRoundEnds == static_cast<std::size_t>(RoundEnd::kTimeout) + 1);

boost::json::object phase_seconds_object(const PhaseSeconds& seconds);
boost::json::object round_record_object(const RoundRecord& record);

// Returns {"ettr":…,"seconds":{…},"rounds":[…]}: the sums of all rounds, and as many of the last
// rounds as fit in `max_bytes` (at least 1 KiB). "ettr" is null while no phase is over.
std::string ledger_text(const Ledger& ledger, std::size_t max_bytes);

}  // namespace ddprun::membership
