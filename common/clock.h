// SPDX-License-Identifier: Apache-2.0
// Deadlines on the monotonic clock. Every wait in this tree takes one.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace ddprun {

using Clock = std::chrono::steady_clock;

// A point in time by which a call must have returned.
class Deadline {
 public:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  // Takes any unit and size. A negative time-out has expired. One that the clock can't hold
  // ("milliseconds::max()" for "never") ends in 100 years.
  template <typename Rep, typename Period>
  static Deadline after(std::chrono::duration<Rep, Period> timeout) {
    constexpr std::chrono::hours kLongest{24 * 365 * 100};
    if (timeout >= kLongest) return Deadline(Clock::now() + kLongest);
    if (timeout <= timeout.zero()) return Deadline(Clock::now());
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout));
  }

  Clock::time_point at() const { return at_; }
  bool expired() const { return Clock::now() >= at_; }

  // Returns the time left, never negative.
  Clock::duration remaining() const {
    return std::max(at_ - Clock::now(), Clock::duration::zero());
  }

  // Returns the time left for poll(2): rounded up so that a wait never ends early, at most 24 days.
  int poll_timeout_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
    return static_cast<int>(std::min<long long>(left, 2'000'000'000));
  }

 private:
  Clock::time_point at_;
};

// Sets `deadline` to the earlier one of two, where nullopt means never.
inline void keep_earlier(std::optional<Clock::time_point>& deadline,
                         const std::optional<Clock::time_point>& at) {
  if (at && (!deadline || *at < *deadline)) deadline = at;
}

}  // namespace ddprun
