// SPDX-License-Identifier: Apache-2.0
// Says once that this node is about to be taken away, and once that the job's time is over. io
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>

#include "common/clock.h"
#include "launcher/preemption_options.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

class PreemptionWatch {
 public:
  using Warn = std::function<void(membership::Preempted)>;

  // From the construction on the signals don't end this process. `begun`: the time limit's begin.
  PreemptionWatch(boost::asio::io_context& io, const PreemptionOptions& options,
                  Clock::time_point begun, Warn warn);

 private:
  void wait_for_signal();
  void wait_for_time_limit(Clock::time_point begun);

  const PreemptionOptions options_;
  const Warn warn_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer timer_;
  bool warned_ = false;
};

}  // namespace ddprun::launcher
