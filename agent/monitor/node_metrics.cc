// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_metrics.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "rendezvous/membership/node_report.h"

namespace ddprun::agent {
namespace {

using metrics::TextWriter;
using metrics::Type;

void write_counters(TextWriter& out, const NodeCounters& node) {
  if (node.num_cpus) {
    out.single("ddprun_node_cpus", Type::kGauge, "CPUs of this machine that are online.",
               static_cast<std::uint64_t>(*node.num_cpus));
  }
  if (node.cpu) {
    out.family("ddprun_node_cpu_seconds_total", Type::kCounter,
               "Time of all CPUs of this machine, by what it was spent in.");
    out.sample({{"mode", "user"}}, node.cpu->user);
    out.sample({{"mode", "nice"}}, node.cpu->nice);
    out.sample({{"mode", "system"}}, node.cpu->system);
    out.sample({{"mode", "idle"}}, node.cpu->idle);
    out.sample({{"mode", "iowait"}}, node.cpu->iowait);
    out.sample({{"mode", "irq"}}, node.cpu->irq);
    out.sample({{"mode", "softirq"}}, node.cpu->softirq);
    out.sample({{"mode", "steal"}}, node.cpu->steal);
  }
  if (node.memory) {
    out.single("ddprun_node_memory_bytes", Type::kGauge, "Memory of this machine.",
               node.memory->total_bytes);
    out.single("ddprun_node_memory_available_bytes", Type::kGauge,
               "Of that, what programs could have without swapping.", node.memory->available_bytes);
  }
  if (node.tcp) {
    out.single("ddprun_node_tcp_sent_segments_total", Type::kCounter,
               "TCP segments sent from this network namespace.", node.tcp->sent_segments);
    out.single("ddprun_node_tcp_retransmitted_segments_total", Type::kCounter,
               "TCP segments that were sent again.", node.tcp->retransmitted_segments);
  }
  if (node.interfaces.empty()) return;
  out.family("ddprun_node_network_received_bytes_total", Type::kCounter,
             "Bytes that an interface has received.");
  for (const auto& each : node.interfaces) {
    out.sample({{"interface", each.name}}, each.received_bytes);
  }
  out.family("ddprun_node_network_sent_bytes_total", Type::kCounter,
             "Bytes that an interface has sent.");
  for (const auto& each : node.interfaces) {
    out.sample({{"interface", each.name}}, each.sent_bytes);
  }
}

void write_gpus(TextWriter& out, const GpuStatuses& gpus) {
  const auto of_each = [&](const char* name, const char* help, auto field) {
    bool is_begun = false;
    std::size_t num = 0;
    for (const auto& [index, gpu] : gpus) {
      if (++num > membership::kMaxReportedGpus) break;
      if (!(gpu.*field)) continue;
      if (!std::exchange(is_begun, true)) out.family(name, Type::kGauge, help);
      out.sample({{"gpu", std::to_string(index)}}, *(gpu.*field));
    }
  };
  of_each("ddprun_node_gpu_use_ratio", "Share of the last moments in which a kernel ran.",
          &GpuStatus::use);
  of_each("ddprun_node_gpu_memory_bytes", "Memory of a GPU.", &GpuStatus::memory_bytes);
  of_each("ddprun_node_gpu_memory_used_bytes", "Of that, what is in use.",
          &GpuStatus::memory_used_bytes);
  of_each("ddprun_node_gpu_power_watts", "What a GPU draws.", &GpuStatus::watts);
  of_each("ddprun_node_gpu_temperature_celsius", "How hot a GPU is.", &GpuStatus::celsius);
}

}  // namespace

void write_node(TextWriter& out, const NodeReading& node) {
  write_counters(out, node.counters);
  write_gpus(out, node.gpus);
}

}  // namespace ddprun::agent
