// SPDX-License-Identifier: Apache-2.0
// What the kernel counts of this node, from /proc: CPU time, memory, bytes of interfaces, TCP's
// retransmits. Readers wait for nothing; parsers are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Of all CPUs together since the machine began, in seconds.
struct CpuSeconds {
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;

  double busy() const { return user + nice + system + irq + softirq + steal; }
  double total() const { return busy() + idle + iowait; }
};

struct NodeMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // for programs, without swapping
};

struct TcpCounters {
  std::uint64_t sent_segments = 0;  // retransmitted ones included or not, as the kernel has it
  std::uint64_t retransmitted_segments = 0;
};

struct InterfaceCounters {
  std::string name;
  std::uint64_t received_bytes = 0, sent_bytes = 0;
};

// What the kernel doesn't say is nullopt, or left out.
struct NodeCounters {
  std::optional<CpuSeconds> cpu;
  std::optional<int> num_cpus;  // online
  std::optional<NodeMemory> memory;
  std::optional<TcpCounters> tcp;             // of this network namespace
  std::vector<InterfaceCounters> interfaces;  // see choose_interfaces()
};

// `limit`: of interfaces.
NodeCounters read_node_counters(std::size_t limit);

// ---- parsers ----

// The first line of /proc/stat; `ticks_per_second` of them.
std::optional<CpuSeconds> parse_cpu_seconds(std::string_view proc_stat, double ticks_per_second);
std::optional<NodeMemory> parse_memory(std::string_view meminfo);
// /proc/net/dev, without loopback; a line that is of another form is left out.
std::vector<InterfaceCounters> parse_interfaces(std::string_view net_dev);
std::optional<TcpCounters> parse_tcp(std::string_view net_snmp);

// Those that ever moved a byte and that have a device (`has_device`): a byte that passes a bridge,
// a bond or a tunnel passes one of these, too. Where none has one, as in a container, all. The
// first `limit` by name.
std::vector<InterfaceCounters> choose_interfaces(
    std::vector<InterfaceCounters> all, std::size_t limit,
    const std::function<bool(const std::string& name)>& has_device);

}  // namespace ddprun::agent
