// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ddprun::agent {
namespace {

using membership::NodeReport;

std::optional<double> rate(std::uint64_t before, std::uint64_t now, double seconds) {
  if (now < before || seconds <= 0) return std::nullopt;
  return static_cast<double>(now - before) / seconds;
}

// The kernel's time of waiting for disks may go back.
std::optional<double> busy_share(const CpuSeconds& before, const CpuSeconds& now) {
  const double total = now.total() - before.total();
  if (total <= 0) return std::nullopt;
  return std::clamp((now.busy() - before.busy()) / total, 0.0, 1.0);
}

void add_interfaces(const std::vector<InterfaceCounters>& before,
                    const std::vector<InterfaceCounters>& now, double seconds, NodeReport& out) {
  for (const InterfaceCounters& each : now) {
    const auto old = std::find_if(before.begin(), before.end(), [&](const InterfaceCounters& one) {
      return one.name == each.name;
    });
    if (old == before.end()) continue;
    const auto received = rate(old->received_bytes, each.received_bytes, seconds);
    const auto sent = rate(old->sent_bytes, each.sent_bytes, seconds);
    if (received && sent) out.interfaces.push_back({each.name, *received, *sent});
  }
}

}  // namespace

NodeReport NodeRates::report(const NodeCounters& counters, const GpuStatuses& gpus,
                             Clock::time_point now) {
  NodeReport out;
  out.num_cpus = counters.num_cpus;
  if (counters.memory) {
    out.memory_bytes = counters.memory->total_bytes;
    out.memory_used_bytes = counters.memory->total_bytes - counters.memory->available_bytes;
  }
  for (const auto& [index, gpu] : gpus) {
    out.gpus.push_back(
        {index, gpu.use, gpu.memory_bytes, gpu.memory_used_bytes, gpu.watts, gpu.celsius});
  }
  if (last_) {
    const NodeCounters& before = last_->counters;
    const double seconds = std::chrono::duration<double>(now - last_->at).count();
    if (before.cpu && counters.cpu) out.cpu = busy_share(*before.cpu, *counters.cpu);
    if (before.tcp && counters.tcp) {
      out.retransmit_rate =
          rate(before.tcp->retransmitted_segments, counters.tcp->retransmitted_segments, seconds);
    }
    add_interfaces(before.interfaces, counters.interfaces, seconds, out);
  }
  last_ = Reading{counters, now};
  return out;
}

}  // namespace ddprun::agent
