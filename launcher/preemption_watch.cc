// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_watch.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/signal_names.h"

namespace ddprun::launcher {

using membership::Preempted;

PreemptionWatch::PreemptionWatch(boost::asio::io_context& io, const PreemptionOptions& options,
                                 Clock::time_point begun, Warn warn)
    : options_(options), warn_(std::move(warn)), signals_(io), timer_(io) {
  for (const int number : options_.signals) signals_.add(number);
  if (!options_.signals.empty()) wait_for_signal();
  if (options_.time_limit) wait_for_time_limit(begun);
}

// Schedulers repeat themselves; the first one counts.
void PreemptionWatch::wait_for_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    if (std::exchange(warned_, true)) return;
    warn_({Preempted::Kind::kNode, "got " + signal_name(number), options_.notice});
  });
}

void PreemptionWatch::wait_for_time_limit(Clock::time_point begun) {
  const Clock::time_point end = begun + *options_.time_limit;
  timer_.expires_at(std::max(begun, end - options_.notice));
  timer_.async_wait([this, end](const boost::system::error_code& error) {
    if (error) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    warn_({Preempted::Kind::kTimeLimit,
           concat("reaches the time limit of ", options_.time_limit->count() / 1000.0, " s"),
           std::max(left, std::chrono::milliseconds{0})});
  });
}

}  // namespace ddprun::launcher
