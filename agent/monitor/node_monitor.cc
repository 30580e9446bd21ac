// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_monitor.h"

#include <utility>

namespace ddprun::agent {

NodeMonitor::NodeMonitor(boost::asio::io_context& io, NodeMonitorOptions options, Said said)
    : options_(std::move(options)),
      said_(std::move(said)),
      gpus_(io, options_.gpus_program),
      timer_(io),
      alive_(std::make_shared<bool>(true)) {}

NodeMonitor::~NodeMonitor() = default;

void NodeMonitor::start() { arm(options_.first_wait); }

void NodeMonitor::arm(std::chrono::milliseconds wait) {
  timer_.expires_after(wait);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) tick();
  });
}

void NodeMonitor::tick() {
  const bool is_first = !std::exchange(has_read_, true);
  arm(is_first ? options_.first_wait : options_.interval);
  auto now = report();
  if (!is_first) said_(std::move(now));
}

membership::NodeReport NodeMonitor::report() {
  const Clock::time_point now = Clock::now();
  read_at_ = now;
  const NodeReading reading = read();
  return rates_.report(reading.counters, reading.gpus, now);
}

std::optional<membership::NodeReport> NodeMonitor::take_report() {
  const auto aside = options_.interval / 5;
  if (!read_at_ || Clock::now() < *read_at_ + aside) return std::nullopt;
  arm(options_.interval + aside);
  return report();
}

NodeReading NodeMonitor::read() {
  gpus_.ask();
  return {read_node_counters(membership::kMaxReportedInterfaces), gpus_.last(Clock::now())};
}

}  // namespace ddprun::agent
