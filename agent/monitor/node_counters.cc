// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/node_counters.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr char kInterfaces[] = "/sys/class/net/";
constexpr std::size_t kLineBytes = 512;      // a line of ten numbers
constexpr std::size_t kMostBytes = 1 << 18;  // a thousand interfaces

// The file's first bytes; empty: it isn't there.
std::string read_text(const char* path, std::size_t most) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!file) return text;
  std::array<char, 8192> part;
  while (text.size() < most) {
    const ssize_t size = ::read(file.get(), part.data(), std::min(part.size(), most - text.size()));
    if (size <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return text;
}

std::string_view next_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  return line;
}

std::string_view next_word(std::string_view& rest) {
  const std::size_t begin = std::min(rest.find_first_not_of(" \t"), rest.size());
  rest.remove_prefix(begin);
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t"));
  rest.remove_prefix(word.size());
  return word;
}

std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<CpuSeconds> parse_cpu_seconds(std::string_view proc_stat, double ticks_per_second) {
  std::string_view line = next_line(proc_stat);
  if (next_word(line) != "cpu" || ticks_per_second <= 0) return std::nullopt;
  CpuSeconds all;
  // The first four are as old as the file; guests' time is a part of user and nice.
  int num_found = 0;
  for (double* field : {&all.user, &all.nice, &all.system, &all.idle, &all.iowait, &all.irq,
                        &all.softirq, &all.steal}) {
    const auto ticks = number(next_word(line));
    if (!ticks) break;
    *field = static_cast<double>(*ticks) / ticks_per_second;
    ++num_found;
  }
  return num_found >= 4 ? std::optional(all) : std::nullopt;
}

std::optional<NodeMemory> parse_memory(std::string_view meminfo) {
  constexpr std::uint64_t kKibibyte = 1024, kMost = UINT64_MAX / kKibibyte;
  std::optional<std::uint64_t> total, available;
  while (!meminfo.empty() && !(total && available)) {
    std::string_view line = next_line(meminfo);
    const std::string_view name = next_word(line);
    auto* wanted = name == "MemTotal:" ? &total : name == "MemAvailable:" ? &available : nullptr;
    if (wanted == nullptr) continue;
    const auto kibibytes = number(next_word(line));
    if (kibibytes && *kibibytes <= kMost) *wanted = *kibibytes * kKibibyte;
  }
  if (!total || !available) return std::nullopt;
  return NodeMemory{*total, std::min(*available, *total)};
}

std::vector<InterfaceCounters> parse_interfaces(std::string_view net_dev) {
  constexpr int kSentBytes = 8;  // the ninth number
  std::vector<InterfaceCounters> found;
  while (!net_dev.empty()) {
    std::string_view line = next_line(net_dev);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;  // the heading
    std::string_view before = line.substr(0, colon);
    InterfaceCounters each;
    each.name = next_word(before);
    line.remove_prefix(colon + 1);
    std::optional<std::uint64_t> value = number(next_word(line));
    if (!value || each.name.empty() || each.name == "lo") continue;
    each.received_bytes = *value;
    for (int i = 0; i < kSentBytes && value; ++i) value = number(next_word(line));
    if (!value) continue;
    each.sent_bytes = *value;
    found.push_back(std::move(each));
  }
  return found;
}

// Two lines: the columns' names, then their numbers, some of which are negative.
std::optional<TcpCounters> parse_tcp(std::string_view net_snmp) {
  std::optional<std::string_view> names;
  while (!net_snmp.empty()) {
    std::string_view line = next_line(net_snmp);
    if (next_word(line) != "Tcp:") continue;
    if (!names) {
      names = line;
      continue;
    }
    std::optional<std::uint64_t> sent, retransmitted;
    while (!names->empty()) {
      const std::string_view name = next_word(*names), value = next_word(line);
      if (name == "OutSegs") sent = number(value);
      if (name == "RetransSegs") retransmitted = number(value);
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
  now.cpu = parse_cpu_seconds(read_text("/proc/stat", kLineBytes), ticks_per_second);
  if (const long num_cpus = ::sysconf(_SC_NPROCESSORS_ONLN); num_cpus > 0) {
    now.num_cpus = static_cast<int>(num_cpus);
  }
  now.memory = parse_memory(read_text("/proc/meminfo", kMostBytes));
  now.tcp = parse_tcp(read_text("/proc/net/snmp", kMostBytes));
  now.interfaces = choose_interfaces(
      parse_interfaces(read_text("/proc/net/dev", kMostBytes)), limit, [](const std::string& name) {
        return ::access((kInterfaces + name + "/device").c_str(), F_OK) == 0;
      });
  return now;
}

}  // namespace ddprun::agent
