// SPDX-License-Identifier: Apache-2.0
// Reads the state of this node every few seconds, from start() until its destruction, and when it
// is asked (docs/metrics.md). No reading waits for anything: those of the GPUs are from the last
// answer. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_lines.h"
#include "common/clock.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {

// The kernel's counts of this node, from /proc: CPU time, memory, bytes of interfaces, TCP's
// retransmits. Readers wait for nothing; parsers are pure.

// The sum of all CPUs since the machine began, in seconds.
struct CpuSeconds {
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;

  double busy() const { return user + nice + system + irq + softirq + steal; }
  double total() const { return busy() + idle + iowait; }
};

// The kinds of CPU time, in the kernel's order.
inline constexpr std::pair<const char*, double CpuSeconds::*> kCpuTimes[] = {
    {"user", &CpuSeconds::user},       {"nice", &CpuSeconds::nice},
    {"system", &CpuSeconds::system},   {"idle", &CpuSeconds::idle},
    {"iowait", &CpuSeconds::iowait},   {"irq", &CpuSeconds::irq},
    {"softirq", &CpuSeconds::softirq}, {"steal", &CpuSeconds::steal}};

struct NodeMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // for programs, without swapping
};

struct TcpCounters {
  std::uint64_t sent_segments = 0;  // with or without retransmitted ones, as the kernel counts
  std::uint64_t retransmitted_segments = 0;
};

struct InterfaceCounters {
  std::string name;
  std::uint64_t received_bytes = 0, sent_bytes = 0;
};

// A value that the kernel doesn't tell is nullopt, or left out.
struct NodeCounters {
  std::optional<CpuSeconds> cpu;
  std::optional<int> num_cpus;  // online
  std::optional<NodeMemory> memory;
  std::optional<TcpCounters> tcp;             // of this network namespace
  std::vector<InterfaceCounters> interfaces;  // see choose_interfaces()
};

// `limit`: the largest number of interfaces.
NodeCounters read_node_counters(std::size_t limit);

// ---- parsers ----

// Parses the first line of /proc/stat. `ticks_per_second`: its unit of time.
std::optional<CpuSeconds> parse_cpu_seconds(std::string_view proc_stat, double ticks_per_second);
std::optional<NodeMemory> parse_memory(std::string_view meminfo);
// Parses /proc/net/dev, without loopback; a line of another form is left out.
std::vector<InterfaceCounters> parse_interfaces(std::string_view net_dev);
std::optional<TcpCounters> parse_tcp(std::string_view net_snmp);

// Chooses the interfaces that ever moved a byte and that have a device (`has_device`). A byte that
// passes a bridge, a bond or a tunnel also passes one of these. If none has a device, as in a
// container, all that moved a byte are chosen. Returns the first `limit` by name.
std::vector<InterfaceCounters> choose_interfaces(
    std::vector<InterfaceCounters> all, std::size_t limit,
    const std::function<bool(const std::string& name)>& has_device);

// One look at this node. Plain data.
struct NodeReading {
  NodeCounters counters;
  GpuStatuses gpus;
};

// Makes a node's report to the rendezvous, from the kernel's counts now and at the reading before.
// Pure.
class NodeRates {
 public:
  // Returns the report with rates since the last call. They are not known at the first call, nor if
  // a counter went back (an interface that was made anew). `now` is later each time.
  membership::NodeReport report(const NodeCounters& counters, const GpuStatuses& gpus,
                                Clock::time_point now);

 private:
  struct Reading {
    NodeCounters counters;
    Clock::time_point at{};
  };
  std::optional<Reading> last_;
};

struct NodeMonitorOptions {
  std::string gpus_program;  // ddprun-gpus; empty: GPUs are not looked at
  std::chrono::milliseconds interval{5'000};
  // From start() to the first report, which then has rates.
  std::chrono::milliseconds first_wait{1'000};
};

class NodeMonitor {
 public:
  using Said = std::function<void(membership::NodeReport)>;

  NodeMonitor(boost::asio::io_context& io, NodeMonitorOptions options, Said said);
  // No call comes after this.
  ~NodeMonitor();

  void start();
  // Returns the next report before its time, for a caller that sends a message anyway; nobody else
  // gets that report. The report after it comes a fifth of the interval late, so that a caller can
  // take it, too. nullopt: the last reading is younger than that fifth, or there is none yet.
  std::optional<membership::NodeReport> take_report();
  NodeReading read();

 private:
  void arm(std::chrono::milliseconds wait);
  void tick();
  membership::NodeReport report();

  const NodeMonitorOptions options_;
  const Said said_;
  GpuStatuses gpus_;  // the last answer
  Clock::time_point gpus_read_at_{};
  LazyGpuHelper gpu_helper_;  // after the members that its answers change
  NodeRates rates_;
  bool has_read_ = false;
  std::optional<Clock::time_point> read_at_;  // when a report was read last
  boost::asio::steady_timer timer_;
  std::shared_ptr<bool> alive_;  // the timer's handler holds it weakly
};

}  // namespace ddprun::agent
