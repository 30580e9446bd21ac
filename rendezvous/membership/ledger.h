// SPDX-License-Identifier: Apache-2.0
// Accounts for a job's time: one record per round, and their sum; also as JSON. ETTR (effective
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

// Seconds of a round's phases, in the order in which they come.
struct PhaseSeconds {
  double rendezvous = 0;     // the previous round is over (or the job began) → members are chosen
  double warming = 0;        // taken from `spawn`: imports that workers begin with (docs/warm.md)
  double spawn = 0;          // → all workers run
  double communicators = 0;  // taken from `first_step`: communicators were made
  double first_step = 0;     // → every node has finished a step (where they report it)
  double running = 0;        // → the event that ended the round
  double redone = 0;         // taken from `running`: its last steps, which a later round did again
  double detect = 0;         // → the rendezvous knew of it
  double stop = 0;           // → no worker is left
  double delay = 0;          // → a crash loop's delay is over: the next round may begin

  double lost() const {
    return rendezvous + warming + spawn + communicators + first_step + redone + detect + stop +
           delay;
  }
  // Running ÷ all: the effective training time ratio. nullopt: there is none yet.
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
  bool in_place = false;  // with the workers that the previous one left (docs/inplace.md)
  // Against the previous round; of many only the first kMaxNames.
  std::vector<std::string> came, went;
  std::vector<std::string> stragglers;  // at its end, see hang_inquiry.cc
  std::string first_failure;            // where failed workers ended it: the first one,
  std::vector<std::string> victims;     // and those that failed after it (RoundFailures)
  int num_warm = 0;                     // workers that began with their imports done (docs/warm.md)
  std::string cold;   // why another one did not; empty: there is none, or nobody asked
  std::string cause;  // of its end; empty while it lives, and when all workers succeeded
  // By the job's own count over restarts; 0: not reported.
  std::uint64_t first_step = 0, last_step = 0;
  std::uint64_t steps_redone = 0;  // how many of its steps a later round did again
  PhaseSeconds seconds;

  static constexpr std::size_t kMaxNames = 64;
};

class Ledger {
 public:
  using TimePoint = Clock::time_point;
  explicit Ledger(TimePoint job_began = {}) : phase_began_(job_began) {}

  // The four moments of a round, in this order; running() may be missing. `members`: their names,
  // sorted or not; `detect`: how long before `now` the round's end really came.
  void started(RoundRecord record, std::vector<std::string> members, TimePoint now);
  // The workers of a node run, before running(). The slowest node's imports are the round's.
  void node_runs(const WorkersRunning& node);
  void running(TimePoint now);
  // Every node has finished its first step of the round; `step` is its number, 0: it has none. The
  // steps of the last round that told its last step, from this number on, are done again. Their
  // cost there, by that round's own pace, was lost. `connecting`: how long the slowest of its
  // workers took to make communicators.
  void first_step(std::uint64_t step, Clock::duration connecting, TimePoint now);
  void over(const std::string& cause, Clock::duration detect, TimePoint now);
  // `delayed_until`: the next round doesn't begin before it.
  void stopped(TimePoint now, std::optional<TimePoint> delayed_until = {});
  // From any node, before stopped(): the largest step that the round finished.
  void last_step(std::uint64_t step);
  // For the round that is being stopped; before stopped().
  void name_failures(std::string first, std::vector<std::string> victims);
  // Instead of over()'s; before stopped().
  void name_cause(std::string cause);
  // For the live round; before over().
  void name_stragglers(std::vector<std::string> names);

  // The last kKept rounds, the live one included.
  const std::deque<RoundRecord>& rounds() const { return rounds_; }
  // The names of the last round's members, sorted.
  const std::vector<std::string>& last_members() const { return members_; }
  // Sums over all rounds. The live round counts as far as its phases are over.
  const PhaseSeconds& total() const { return total_; }
  // Seconds since the phase that lasts began.
  double in_phase(TimePoint now) const {
    return std::chrono::duration<double>(now - phase_began_).count();
  }
  // As total(), with the phase that lasts, as if it ended now and nothing had been noticed late.
  PhaseSeconds total_until(TimePoint now) const;
  // The sum that the present phase's time goes into.
  double PhaseSeconds::*phase_member() const;
  TimePoint phase_began() const { return phase_began_; }
  TimePoint delayed_until() const { return delayed_until_; }
  // Without the phase that lasts.
  std::optional<double> ettr() const { return total_.ettr(); }
  // One line for people, of a job of several rounds: "3 rounds; workers ran 94.2 of 95.0 s (99.2
  // %); lost: 0.15 s noticing, …".
  std::string summary() const;

  static constexpr std::size_t kKept = 100;

  // Call it after reading from a journal. If that lacks the present round, the ledger goes on as
  // between two rounds.
  void restored() {
    if (rounds_.empty()) phase_ = Phase::kRendezvous;
  }

  // For the journal: differs from what it was when anything has changed.
  std::uint64_t version() const { return version_; }

 private:
  enum class Phase { kRendezvous, kSpawn, kRunning, kStepping, kStop };
  friend Phase last_of(Phase) { return Phase::kStop; }
  bool is_live() const;
  void count_redone(std::uint64_t first_step);
  // The end of the delay, as far as it is over, where this is the time between two rounds.
  TimePoint delay_end(TimePoint now) const;
  // The time since the phase began goes to `phase` of the last round; the next one begins.
  void close_phase(double PhaseSeconds::*phase, TimePoint now);

  std::deque<RoundRecord> rounds_;
  std::vector<std::string> members_;  // of the last round, sorted
  PhaseSeconds total_;
  std::uint64_t num_rounds_ = 0;
  bool reports_steps_ = false;  // some round did
  Phase phase_ = Phase::kRendezvous;
  TimePoint phase_began_;
  TimePoint delayed_until_{};             // kRendezvous: a crash loop's delay
  std::chrono::microseconds warming_{0};  // kSpawn: the longest that a node said
  std::uint64_t version_ = 0;

  BOOST_DESCRIBE_CLASS(Ledger, (), (), (),
                       (rounds_, members_, total_, num_rounds_, reports_steps_, phase_,
                        phase_began_, delayed_until_, warming_))
};

// Kinds of events that end a round: few, so that they can be counted (docs/metrics.md). The journal
// has them by number: new ones go to the end.
enum class RoundEnd {
  kOther,         // a rendezvous that knew no kinds has ended it
  kSuccess,       // all workers were done
  kWorkerFailed,  // one of them did, or left unasked
  kHang,
  kNodeLost,
  kNodeLeft,       // it was told to, or a worker asked for it to be left out
  kNodeJoined,     // --on-join=restart
  kPreempted,      // a node was warned that it is taken away
  kTimeLimit,      // the job's time is over
  kWorkerRequest,  // a worker has stopped the job
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

// {"ettr":…,"seconds":{…},"rounds":[…]}, the sums of all rounds, and the last ones that fit in
// `max_bytes` (at least 1 KiB) with all that. "ettr" is null before anything is over.
std::string ledger_text(const Ledger& ledger, std::size_t max_bytes);

}  // namespace ddprun::membership
