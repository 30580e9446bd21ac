// SPDX-License-Identifier: Apache-2.0
// What the stores in the rendezvous may take, of one job's workers or in all. Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "common/clock.h"

namespace ddprun::rendezvous {

// Of requests 0 is any number; of the others it is a limit like any other.
struct StoreLimits {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;        // keys, values, waits, 128 for each, and what is under way
  std::uint64_t connections = 0;  // of workers, through their nodes' proxies
  std::uint64_t requests = 0;     // a second
};
// Those of ddprund without --job-limits and --limits, and of a rendezvous within ddprun.
inline constexpr StoreLimits kJobLimits{
    .keys = 1'000'000, .bytes = std::uint64_t{4} << 30, .connections = 65'536, .requests = 0};
inline constexpr StoreLimits kTotalLimits{
    .keys = 10'000'000, .bytes = std::uint64_t{16} << 30, .connections = 262'144, .requests = 0};

// Changes those that `text` names ("keys=1000,bytes=2GiB"); numbers may end in k, M, G (powers of
// 1,000) or KiB, MiB, GiB. Empty, or what is wrong with it.
std::string set_limits(std::string_view text, StoreLimits& limits);

// How many requests may be carried out now, so that there are no more than so many a second; what
// was not used in the last second may come at once.
class RequestRate {
 public:
  explicit RequestRate(std::uint64_t per_second)
      : per_second_(static_cast<double>(per_second)), credit_(per_second_) {}

  std::size_t allowed(Clock::time_point now) {
    if (per_second_ == 0) return std::numeric_limits<std::size_t>::max();
    const double passed = std::chrono::duration<double>(now - last_).count();
    credit_ = std::min(per_second_, credit_ + std::max(passed, 0.0) * per_second_);
    last_ = std::max(last_, now);
    return credit_ < 1 ? 0 : static_cast<std::size_t>(credit_);
  }
  void spend(std::size_t requests) { credit_ -= static_cast<double>(requests); }

 private:
  const double per_second_;
  double credit_;
  Clock::time_point last_;
};

}  // namespace ddprun::rendezvous
