// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_monitor.h"

#include <utility>

#include "common/clock.h"

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
  const NodeReading now = read();
  auto report = rates_.report(now.counters, now.gpus, Clock::now());
  if (!is_first) said_(std::move(report));
}

NodeReading NodeMonitor::read() {
  gpus_.ask();
  return {read_node_counters(membership::kMaxReportedInterfaces), gpus_.last(Clock::now())};
}

}  // namespace ddprun::agent
