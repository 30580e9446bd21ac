// SPDX-License-Identifier: Apache-2.0
// How long one rank's steps take, from looks that are further apart than its steps may be: the time
// between two looks is shared by the steps begun between them. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "agent/hang/rank_sample.h"

namespace ddprun::agent {

class StepHistory {
 public:
  static constexpr std::size_t kWindow = 32;  // steps
  static constexpr std::uint64_t kFirstSteps = 8;

  // One look. A step is from its begin to the next one's begin; one that another phase (a
  // checkpoint) interrupts is not counted.
  void look(const ProgressWords& words, Clock::time_point now);

  // The clocks stood still for so long.
  void skip(Clock::duration time);

  bool warmed_up() const { return num_steps_ >= kFirstSteps; }
  Clock::duration slowest_of_window() const;
  Clock::duration slowest_since_warm_up() const { return slowest_; }

  // Median of the window, once it is full.
  std::optional<Clock::duration> median() const;
  // Its part outside collectives: share of looks in which none was open.
  std::optional<Clock::duration> own_median() const;

 private:
  std::array<Clock::duration, kWindow> window_{};
  std::uint64_t num_steps_ = 0;
  std::uint64_t step_ = 0;
  std::optional<Clock::time_point> begun_;  // of step_, while nothing interrupted it
  Clock::duration slowest_{};
  double looks_ = 0, looks_in_collective_ = 0;  // halved now and then: the past fades
};

}  // namespace ddprun::agent
