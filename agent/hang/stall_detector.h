// SPDX-License-Identifier: Apache-2.0
// Finds the ranks of a node that have stopped making progress. It gets one look at all of them
// every 100 ms, and returns which ones to report. It learns its time-outs from the first steps
// (docs/hang-detection.md). Pure: no I/O, clock or thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/hang/rank_sample.h"

namespace ddprun::agent {

// How long one rank's steps take. Steps may be shorter than the time between two looks. So that
// time is divided by the steps begun between them. Pure.
class StepHistory {
 public:
  static constexpr std::size_t kWindow = 32;  // steps
  static constexpr std::uint64_t kFirstSteps = 8;

  // Takes one look. A step lasts from its begin to the next one's begin. A step that another phase
  // (a checkpoint) interrupts is not counted.
  void look(const ProgressWords& words, Clock::time_point now);

  // Called when the clocks stood still for so long.
  void skip(Clock::duration time);

  bool warmed_up() const { return num_steps_ >= kFirstSteps; }
  Clock::duration slowest_of_window() const;
  Clock::duration slowest_since_warm_up() const { return slowest_; }

  // Returns the median of the window, once it is full.
  std::optional<Clock::duration> median() const;
  // Returns its part outside collectives, from the share of looks in which none was open.
  std::optional<Clock::duration> own_median() const;

 private:
  std::array<Clock::duration, kWindow> window_{};
  std::uint64_t num_steps_ = 0;
  std::uint64_t step_ = 0;
  std::optional<Clock::time_point> begun_;  // when step_ began, unless something interrupted it
  Clock::duration slowest_{};
  double looks_ = 0, looks_in_collective_ = 0;  // halved now and then, so that old looks count less
};

class StallDetector {
 public:
  // If looks are further apart than this, the agent itself stood still: that time doesn't count.
  static constexpr std::chrono::milliseconds kStandstill{1'000};
  static constexpr std::chrono::milliseconds kLeastStepLimit{5'000};
  static constexpr int kStepFactor = 10;  // × the slowest step of the window
  static constexpr int kEverFactor = 3;   // × the slowest one since the first steps
  static constexpr std::chrono::minutes kPatientLimit{30};  // phases that may take long
  static constexpr int kPatientFactor = 10;                 // × the slowest such phase seen
  static constexpr std::chrono::minutes kForeignLimit{10};
  // A learnt limit only says when a rank is reported. The rank may be acted upon after these times
  // at the earliest.
  static constexpr std::chrono::minutes kLeastBlockedLimit{5};
  static constexpr std::chrono::minutes kLeastWorkingLimit{30};
  // A rank's activity is judged by its last one or two intervals of this length.
  static constexpr std::chrono::milliseconds kRecent{2'500};

  StallDetector(HangLimits limits, std::size_t num_ranks);

  // `samples` are by local rank; nullopt: its process has ended, or doesn't run yet. Returns the
  // local ranks to report as stalled now: at their limit, and at twice, 4 ×, … of it. A foreign
  // one's limit is at most kWaitedForLimit.
  std::vector<std::size_t> look(const std::vector<std::optional<RankSample>>& samples,
                                Clock::time_point now);

  // nullopt: the rank was not alive at the last look.
  std::optional<RankView> view(std::size_t local_rank) const;

  // Whether the next sample should include what the worker started: it has been quiet for a while.
  bool wants_family(std::size_t local_rank) const;

 private:
  struct Rank {
    RankSample last;
    bool alive = false;
    Clock::time_point changed{};   // last progress; moves on while the clock stands still
    Clock::time_point moved_at{};  // the same for bytes
    ProcessFacts at_change;
    Clock::time_point phase_began{};
    Clock::duration slowest_checkpoint{}, slowest_evaluation{};
    // `before` is from one to two kRecent ago, `recent` from less than one.
    ProcessFacts before, recent;
    Clock::time_point before_at{}, recent_at{};
    std::optional<Clock::time_point> stopped_since;
    int times_said = 0, times_said_stopped = 0;
    StepHistory steps;
  };

  void look_at(Rank& rank, const RankSample& sample, Clock::duration passed);
  bool moved(const Rank& rank, const RankSample& sample) const;
  // nullopt: the limit is learnt.
  std::optional<Clock::duration> given_limit(const Rank& rank) const;
  Clock::duration limit(const Rank& rank) const;
  Clock::duration first_said_at(const Rank& rank) const;
  Clock::duration limit_if_blocked(const Rank& rank) const;
  std::optional<Clock::duration> limit_if_working(const Rank& rank) const;
  bool learns_limit(const Rank& rank) const;
  Activity activity(const Rank& rank) const;

  const HangLimits limits_;
  std::vector<Rank> ranks_;
  Clock::time_point now_{};
};

}  // namespace ddprun::agent
