// SPDX-License-Identifier: Apache-2.0
// The rendezvous' clock as this node knows it. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

#include "common/clock.h"

namespace ddprun::membership {

// A time on the rendezvous' clock (since that clock's epoch). The true time is within ± error.
struct RemoteMoment {
  std::chrono::microseconds at{0};
  std::chrono::microseconds error{0};
};

// How far the rendezvous' monotonic clock is from this node's, measured as NTP does it. A question
// is sent, the other side answers with its clock's time, and the answer arrives.
class ClockOffset {
 public:
  // Adds a measurement. `sent` and `received` are times of this node's clock; in between the
  // rendezvous' clock showed `answered`. A `received` before `sent` is ignored.
  void sample(Clock::time_point sent, std::chrono::microseconds answered,
              Clock::time_point received) {
    if (received < sent) return;
    const auto half = (received - sent) / 2;
    samples_.push_back(
        {sent + half, answered, std::chrono::duration_cast<std::chrono::microseconds>(half)});
    if (samples_.size() > kKept) samples_.pop_front();
  }

  // Returns the time `when` of this node's clock on the rendezvous' clock, by the sample with the
  // least error. The error is half the round trip, plus what two clocks may have drifted apart
  // since (kDrift). nullopt: there is no sample yet.
  std::optional<RemoteMoment> remote(Clock::time_point when) const {
    using std::chrono::microseconds;
    std::optional<RemoteMoment> best;
    for (const Sample& sample : samples_) {
      const auto since = std::chrono::duration_cast<microseconds>(when - sample.middle);
      const auto drift = microseconds(static_cast<microseconds::rep>(
          static_cast<double>(std::chrono::abs(since).count()) * kDrift));
      const RemoteMoment moment{sample.remote + since, sample.half_round_trip + drift};
      if (!best || moment.error < best->error) best = moment;
    }
    return best;
  }

  // Forgets all samples: the other side may be another machine from now on.
  void reset() { samples_.clear(); }

  static constexpr std::size_t kKept = 8;  // the last samples
  static constexpr double kDrift = 200e-6;

 private:
  struct Sample {
    Clock::time_point middle;          // of the round trip, by this node's clock
    std::chrono::microseconds remote;  // the rendezvous' clock at that time
    std::chrono::microseconds half_round_trip;
  };
  std::deque<Sample> samples_;
};

}  // namespace ddprun::membership
