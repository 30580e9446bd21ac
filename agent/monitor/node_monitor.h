// SPDX-License-Identifier: Apache-2.0
// Reads this node every few seconds from start() on and says how it is, until it is destroyed; and
// when it is asked (docs/metrics.md). No reading waits for anything: the GPUs' are those of the
// last answer. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/gpu/gpu_watch.h"
#include "agent/monitor/node_rates.h"
#include "agent/monitor/node_reading.h"
#include "common/clock.h"
#include "rendezvous/membership/node_report.h"

namespace ddprun::agent {

struct NodeMonitorOptions {
  std::string gpus_program;  // ddprun-gpus; empty: GPUs are not looked at
  std::chrono::milliseconds interval{5'000};
  // After start(), and until the first report, which then has rates.
  std::chrono::milliseconds first_wait{1'000};
};

class NodeMonitor {
 public:
  using Said = std::function<void(membership::NodeReport)>;

  NodeMonitor(boost::asio::io_context& io, NodeMonitorOptions options, Said said);
  // No call comes any more.
  ~NodeMonitor();
  NodeMonitor(const NodeMonitor&) = delete;
  NodeMonitor& operator=(const NodeMonitor&) = delete;

  void start();
  // The next report, now, for who says something anyway. It is said to nobody else, and the one
  // after it comes a fifth of the interval late, so that it can be taken, too. nullopt: the last
  // reading is not older than that, or there is none yet.
  std::optional<membership::NodeReport> take_report();
  NodeReading read();

 private:
  void arm(std::chrono::milliseconds wait);
  void tick();
  membership::NodeReport report();

  const NodeMonitorOptions options_;
  const Said said_;
  GpuWatch gpus_;
  NodeRates rates_;
  bool has_read_ = false;
  std::optional<Clock::time_point> read_at_;  // for a report
  boost::asio::steady_timer timer_;
  std::shared_ptr<bool> alive_;  // the timer's handler holds it weakly
};

}  // namespace ddprun::agent
