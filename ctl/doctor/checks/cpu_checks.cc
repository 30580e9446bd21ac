// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <map>

#include "common/cpu_set.h"
#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

Outcome judge_clocksource(const Facts& facts, const Thresholds&) {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const auto name = facts.files.text(folder + "current_clocksource");
  if (!name) return not_known(facts.files, folder + "current_clocksource");
  Outcome outcome = ok(one_line(*name), "one that is read without a system call (tsc)");
  for (const char* fast :
       {"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "timebase"}) {
    if (*name == fast) return outcome;
  }
  outcome.verdict = Verdict::kWarn;
  const std::string available = facts.files.text(folder + "available_clocksource").value_or("");
  outcome.fix = available.find("tsc") != std::string::npos
                    ? "echo tsc > " + folder + "current_clocksource"
                    : "dmesg | grep -i tsc says why the kernel doesn't use tsc";
  return outcome;
}

Outcome judge_governor(const Facts& facts, const Thresholds&) {
  std::map<std::string, int> counts;
  const std::string top = "/sys/devices/system/cpu";
  for (const std::string& cpu : facts.files.names_in(top)) {
    const auto governor = facts.files.text(top + "/" + cpu + "/cpufreq/scaling_governor");
    if (governor) ++counts[one_line(*governor)];
  }
  if (counts.empty()) return skipped("the kernel doesn't set these CPUs' frequency");
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) {
    parts.push_back(concat(name, " on ", count, count == 1 ? " CPU" : " CPUs"));
  }
  Outcome outcome = ok(list_text(parts), "performance");
  if (counts.size() == 1 && counts.contains("performance")) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix = "cpupower frequency-set -g performance";
  return outcome;
}

Outcome judge_numa_balancing(const Facts& facts, const Thresholds&) {
  const std::string path = "/proc/sys/kernel/numa_balancing";
  const auto value = facts.files.number(path);
  if (!value) return not_known(facts.files, path);
  const std::size_t num_nodes = facts.files.names_in("/sys/devices/system/node").size();
  Outcome outcome = ok(std::to_string(*value), "0");
  if (*value == 0) return outcome;
  if (num_nodes < 2) return ok(concat(*value, ", with one NUMA node"), "0");
  outcome.verdict = Verdict::kWarn;
  outcome.fix = "sysctl -w kernel.numa_balancing=0";
  return outcome;
}

std::optional<CpuSet> own_cpus(const Facts& facts) {
  const std::string name = "Cpus_allowed_list:";
  for (const std::string& line : lines_in(facts.files.text("/proc/self/status").value_or(""))) {
    if (!line.starts_with(name)) continue;
    const auto words = words_in(line.substr(name.size()));
    if (!words.empty()) return parse_cpu_list(words.front());
  }
  return std::nullopt;
}

// Devices with a NUMA node, by it.
std::map<long long, std::vector<std::string>> near_devices(const Facts& facts) {
  std::map<long long, std::vector<std::string>> devices;
  for (const std::string& gpu : nvidia_gpus(facts.files)) {
    const auto node = facts.files.number("/sys/bus/pci/devices/" + gpu + "/numa_node");
    if (node && *node >= 0) devices[*node].push_back("GPU " + gpu);
  }
  for (const Link& link : links_up(facts.files)) {
    if (link.numa_node >= 0) devices[link.numa_node].push_back(link.name);
  }
  const std::string top = "/sys/class/infiniband";
  for (const std::string& adapter : facts.files.names_in(top)) {
    const auto node = facts.files.number(top + "/" + adapter + "/device/numa_node");
    if (node && *node >= 0) devices[*node].push_back(adapter);
  }
  return devices;
}

Outcome judge_numa_affinity(const Facts& facts, const Thresholds&) {
  const std::string top = "/sys/devices/system/node";
  const auto allowed = own_cpus(facts);
  if (!allowed) return not_known(facts.files, "/proc/self/status");
  const auto devices = near_devices(facts);
  std::vector<std::string> nodes, away;
  for (const std::string& name : facts.files.names_in(top)) {
    const auto cpus = parse_cpu_list(facts.files.text(top + "/" + name + "/cpulist").value_or(""));
    if (!cpus || cpus->empty()) continue;
    nodes.push_back(name);
    const auto found = devices.find(std::atoll(name.c_str() + sizeof "node" - 1));
    if (found == devices.end() || !(*cpus & *allowed).empty()) continue;
    away.push_back(list_text(found->second, 3) + " at " + name + " (CPUs " + to_text(*cpus) + ")");
  }
  if (nodes.empty()) return skipped("a kernel without NUMA");
  Outcome outcome = ok(concat(nodes.size(), nodes.size() == 1 ? " node" : " nodes", ", CPUs ",
                              to_text(*allowed), " may be used"),
                       "CPUs near each GPU and adapter");
  if (away.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.seen = "only CPUs " + to_text(*allowed) + " may be used, none near " + list_text(away, 2);
  outcome.fix =
      "allow them: the cgroup's cpuset.cpus, --cpuset-cpus, taskset, the scheduler's "
      "CPUs for each GPU";
  return outcome;
}

Outcome judge_clock_sync(const Facts& facts, const Thresholds&) {
  if (!facts.is_clock_synchronised) return skipped("the kernel doesn't say");
  if (*facts.is_clock_synchronised) return ok("synchronised", "synchronised");
  return {Verdict::kWarn, "nothing keeps this clock right", "synchronised",
          "systemctl enable --now chrony (or systemd-timesyncd)"};
}

}  // namespace

std::vector<Check> cpu_checks() {
  static constexpr char kGroup[] = "cpu";
  return {
      {"clocksource", kGroup, "/sys/devices/system/clocksource/clocksource0",
       "programs that train ask for the time many thousand times a second", judge_clocksource},
      {"cpu_governor", kGroup, "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
       "other governors lower the frequency between two steps", judge_governor},
      {"numa_balancing", kGroup, "kernel.numa_balancing",
       "it takes pages away from workers to see who uses them", judge_numa_balancing},
      {"numa_affinity", kGroup, "/sys/devices/system/node, this process' affinity",
       "a worker far from its GPU or adapter copies over the sockets' link", judge_numa_affinity},
      {"clock_sync", kGroup, "adjtimex(2)",
       "logs of several nodes can't be put in order, certificates expire early or late",
       judge_clock_sync},
  };
}

}  // namespace ddprun::doctor
