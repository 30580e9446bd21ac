// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_monitor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "common/fd_text.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr char kInterfaces[] = "/sys/class/net/";
constexpr std::size_t kLineBytes = 512;      // enough for a line of ten numbers
constexpr std::size_t kMostBytes = 1 << 18;  // enough for a thousand interfaces

// Returns the file's first bytes; empty: it isn't there.
std::string begin_of(const char* path, std::size_t most) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  return file ? read_text(file.get(), most).text : "";
}

std::string_view next_word(std::string_view& rest) {
  const std::size_t begin = std::min(rest.find_first_not_of(" \t"), rest.size());
  rest.remove_prefix(begin);
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t"));
  rest.remove_prefix(word.size());
  return word;
}

using membership::NodeReport;

// An older answer doesn't count: the driver hangs.
constexpr std::chrono::seconds kMaxGpuAge{15};

std::optional<double> rate(std::uint64_t before, std::uint64_t now, double seconds) {
  if (now < before || seconds <= 0) return std::nullopt;
  return static_cast<double>(now - before) / seconds;
}

// Returns the share of busy time. The kernel's time of waiting for disks may go back.
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

std::optional<CpuSeconds> parse_cpu_seconds(std::string_view proc_stat, double ticks_per_second) {
  std::string_view line = take_until(proc_stat, "\n");
  if (next_word(line) != "cpu" || ticks_per_second <= 0) return std::nullopt;
  CpuSeconds all;
  // Every kernel has the first four. Guests' time is already a part of user and nice.
  int num_found = 0;
  for (const auto& time : kCpuTimes) {
    const auto ticks = parsed_number<std::uint64_t>(next_word(line));
    if (!ticks) break;
    all.*time.second = static_cast<double>(*ticks) / ticks_per_second;
    ++num_found;
  }
  return num_found >= 4 ? std::optional(all) : std::nullopt;
}

std::optional<NodeMemory> parse_memory(std::string_view meminfo) {
  constexpr std::uint64_t kKibibyte = 1024, kMost = UINT64_MAX / kKibibyte;
  std::optional<std::uint64_t> total, available;
  while (!meminfo.empty() && !(total && available)) {
    std::string_view line = take_until(meminfo, "\n");
    const std::string_view name = next_word(line);
    auto* wanted = name == "MemTotal:" ? &total : name == "MemAvailable:" ? &available : nullptr;
    if (wanted == nullptr) continue;
    const auto kibibytes = parsed_number<std::uint64_t>(next_word(line));
    if (kibibytes && *kibibytes <= kMost) *wanted = *kibibytes * kKibibyte;
  }
  if (!total || !available) return std::nullopt;
  return NodeMemory{*total, std::min(*available, *total)};
}

std::vector<InterfaceCounters> parse_interfaces(std::string_view net_dev) {
  constexpr int kSentBytes = 8;  // counted from 0 after the colon
  std::vector<InterfaceCounters> found;
  while (!net_dev.empty()) {
    std::string_view line = take_until(net_dev, "\n");
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;  // a line of the heading
    std::string_view before = line.substr(0, colon);
    InterfaceCounters each;
    each.name = next_word(before);
    line.remove_prefix(colon + 1);
    std::optional<std::uint64_t> value = parsed_number<std::uint64_t>(next_word(line));
    if (!value || each.name.empty() || each.name == "lo") continue;
    each.received_bytes = *value;
    for (int i = 0; i < kSentBytes && value; ++i)
      value = parsed_number<std::uint64_t>(next_word(line));
    if (!value) continue;
    each.sent_bytes = *value;
    found.push_back(std::move(each));
  }
  return found;
}

// Parses two lines: the columns' names, then their numbers, some of which are negative.
std::optional<TcpCounters> parse_tcp(std::string_view net_snmp) {
  std::optional<std::string_view> names;
  while (!net_snmp.empty()) {
    std::string_view line = take_until(net_snmp, "\n");
    if (next_word(line) != "Tcp:") continue;
    if (!names) {
      names = line;
      continue;
    }
    std::optional<std::uint64_t> sent, retransmitted;
    while (!names->empty()) {
      const std::string_view name = next_word(*names), value = next_word(line);
      if (name == "OutSegs") sent = parsed_number<std::uint64_t>(value);
      if (name == "RetransSegs") retransmitted = parsed_number<std::uint64_t>(value);
    }
    if (!sent || !retransmitted) return std::nullopt;
    return TcpCounters{*sent, *retransmitted};
  }
  return std::nullopt;
}

std::vector<InterfaceCounters> choose_interfaces(
    std::vector<InterfaceCounters> all, std::size_t limit,
    const std::function<bool(const std::string& name)>& has_device) {
  std::vector<InterfaceCounters> with_device;
  for (const InterfaceCounters& each : all) {
    if (has_device(each.name)) with_device.push_back(each);
  }
  if (!with_device.empty()) all = std::move(with_device);
  std::erase_if(all, [](const InterfaceCounters& each) {
    return each.received_bytes == 0 && each.sent_bytes == 0;
  });
  std::sort(all.begin(), all.end(),
            [](const InterfaceCounters& a, const InterfaceCounters& b) { return a.name < b.name; });
  if (all.size() > limit) all.resize(limit);
  return all;
}

NodeCounters read_node_counters(std::size_t limit) {
  static const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  NodeCounters now;
  now.cpu = parse_cpu_seconds(begin_of("/proc/stat", kLineBytes), ticks_per_second);
  if (const long num_cpus = ::sysconf(_SC_NPROCESSORS_ONLN); num_cpus > 0) {
    now.num_cpus = static_cast<int>(num_cpus);
  }
  now.memory = parse_memory(begin_of("/proc/meminfo", kMostBytes));
  now.tcp = parse_tcp(begin_of("/proc/net/snmp", kMostBytes));
  now.interfaces = choose_interfaces(
      parse_interfaces(begin_of("/proc/net/dev", kMostBytes)), limit, [](const std::string& name) {
        return ::access((kInterfaces + name + "/device").c_str(), F_OK) == 0;
      });
  return now;
}

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

NodeMonitor::NodeMonitor(boost::asio::io_context& io, NodeMonitorOptions options, Said said)
    : options_(std::move(options)),
      said_(std::move(said)),
      gpu_helper_(io, options_.gpus_program),
      timer_(io),
      alive_(std::make_shared<bool>(true)) {}

NodeMonitor::~NodeMonitor() = default;

void NodeMonitor::start() { arm(options_.first_wait); }

void NodeMonitor::arm(std::chrono::milliseconds wait) {
  run_after(timer_, wait, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) tick();
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
  gpu_helper_.ask(GpuRequest::kStatus, [this](const std::string& lines) {
    gpus_ = parse_gpu_statuses(lines);
    gpus_read_at_ = Clock::now();
  });
  return {read_node_counters(membership::kMaxReportedInterfaces),
          Clock::now() - gpus_read_at_ <= kMaxGpuAge ? gpus_ : GpuStatuses()};
}

}  // namespace ddprun::agent
