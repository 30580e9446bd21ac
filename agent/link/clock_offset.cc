// SPDX-License-Identifier: Apache-2.0
#include "agent/link/clock_offset.h"

namespace ddprun::membership {

using std::chrono::duration_cast;
using std::chrono::microseconds;

void ClockOffset::sample(Clock::time_point sent, microseconds answered,
                         Clock::time_point received) {
  if (received < sent) return;
  const auto half = (received - sent) / 2;
  samples_.push_back({sent + half, answered, duration_cast<microseconds>(half)});
  if (samples_.size() > kKept) samples_.pop_front();
}

std::optional<RemoteMoment> ClockOffset::remote(Clock::time_point when) const {
  std::optional<RemoteMoment> best;
  for (const Sample& sample : samples_) {
    const auto since = duration_cast<microseconds>(when - sample.middle);
    const auto drift = microseconds(static_cast<microseconds::rep>(
        static_cast<double>(std::chrono::abs(since).count()) * kDrift));
    const RemoteMoment moment{sample.remote + since, sample.half_round_trip + drift};
    if (!best || moment.error < best->error) best = moment;
  }
  return best;
}

}  // namespace ddprun::membership
