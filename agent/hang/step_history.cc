// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/step_history.h"

#include <algorithm>

namespace ddprun::agent {
namespace {

constexpr double kMaxLooks = 600;                    // a minute of them
constexpr std::uint64_t kMostStepsPerLook = 10'000;  // 100 ms apart

}  // namespace

void StepHistory::look(const ProgressWords& words, Clock::time_point now) {
  if (words.phase != WorkPhase::kTrain || words.step == 0) {
    begun_.reset();
    return;
  }
  ++looks_;
  if (words.in_collective()) ++looks_in_collective_;
  if (looks_ > kMaxLooks) {
    looks_ /= 2;
    looks_in_collective_ /= 2;
  }
  if (words.step == step_ && begun_) return;
  if (begun_) {
    // Numbers that go back (counted anew in each epoch) or jump (a resumed job's) are one more
    // step.
    const std::uint64_t passed = words.step > step_ ? words.step - step_ : 1;
    const std::uint64_t count = warmed_up() && passed <= kMostStepsPerLook ? passed : 1;
    const Clock::duration each = (now - *begun_) / static_cast<std::int64_t>(count);
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, kWindow); ++i) {
      window_[(num_steps_ + i) % kWindow] = each;
    }
    num_steps_ += count;
    if (num_steps_ > kFirstSteps) slowest_ = std::max(slowest_, each);
  }
  step_ = words.step;
  begun_ = now;
}

void StepHistory::skip(Clock::duration time) {
  if (begun_) *begun_ += time;
}

Clock::duration StepHistory::slowest_of_window() const {
  return *std::max_element(window_.begin(), window_.end());
}

std::optional<Clock::duration> StepHistory::median() const {
  if (num_steps_ < kWindow) return std::nullopt;
  std::array<Clock::duration, kWindow> sorted = window_;
  const auto middle = sorted.begin() + kWindow / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::optional<Clock::duration> StepHistory::own_median() const {
  const auto all = median();
  if (!all || looks_ == 0) return std::nullopt;
  return std::chrono::duration_cast<Clock::duration>(*all * (1 - looks_in_collective_ / looks_));
}

}  // namespace ddprun::agent
