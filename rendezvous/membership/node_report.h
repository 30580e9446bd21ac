// SPDX-License-Identifier: Apache-2.0
// What an agent says of its node: CPU, memory, network, GPUs (docs/metrics.md). Plain data, and its
// JSON; untrusted: the rendezvous shows it. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/json_fields.h"

namespace ddprun::membership {

inline constexpr std::size_t kMaxReportedInterfaces = 8;
inline constexpr std::size_t kMaxReportedGpus = 16;

struct InterfaceReport {
  std::string name;
  double received_rate = 0, sent_rate = 0;  // bytes per second

  friend bool operator==(const InterfaceReport&, const InterfaceReport&) = default;
};

// nullopt: it can't say.
struct GpuReport {
  int index = 0;              // NVML's
  std::optional<double> use;  // 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;

  friend bool operator==(const GpuReport&, const GpuReport&) = default;
};

// nullopt: not known, as rates in a node's first report.
struct NodeReport {
  std::optional<int> num_cpus;
  std::optional<double> cpu;  // share of all CPUs' time, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> retransmit_rate;    // TCP segments per second
  std::vector<InterfaceReport> interfaces;  // at most kMaxReportedInterfaces
  std::vector<GpuReport> gpus;              // at most kMaxReportedGpus

  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

// What is not known is left out; what is out of range becomes its limit.
boost::json::object node_report_object(const NodeReport& report);
// For programs: null for what is not known, and the sums over the interfaces.
boost::json::object shown_node_report(const NodeReport& report);
// Throws Error(kProtocol) that names the field.
NodeReport read_node_report(const JsonFields& in);

}  // namespace ddprun::membership
