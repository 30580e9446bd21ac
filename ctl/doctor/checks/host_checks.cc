// SPDX-License-Identifier: Apache-2.0
// Checks of kernel settings, limits, memory, CPUs and clocks.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "common/error.h"
#include "common/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

constexpr char kNetworkSettings[] = "/proc/sys/net/";

bool has_fast_link(const Facts& facts, const Thresholds& limits) {
  long long fastest = 0;
  for (const Link& link : links_up(facts.files)) fastest = std::max(fastest, link.speed_mbits);
  return static_cast<double>(fastest) >= limits.at("fast_link.from");
}

// "net.core.rmem_max" → "/proc/sys/net/core/rmem_max".
std::string file_of(std::string setting) {
  std::replace(setting.begin(), setting.end(), '.', '/');
  return "/proc/sys/" + setting;
}

// "net.core.rmem_max" → "rmem_max.warn".
std::string threshold_of(const std::string& setting) {
  return setting.substr(setting.rfind('.') + 1) + ".warn";
}

constexpr char kRmemMax[] = "net.core.rmem_max", kWmemMax[] = "net.core.wmem_max",
               kTcpRmem[] = "net.ipv4.tcp_rmem", kTcpWmem[] = "net.ipv4.tcp_wmem",
               kSomaxconn[] = "net.core.somaxconn", kSynBacklog[] = "net.ipv4.tcp_max_syn_backlog";

// Checks the largest socket buffer. Only fast links need more than the kernel's default.
template <const char* setting>
Outcome judge_buffer(const Facts& facts, const Thresholds& limits) {
  const std::string path = file_of(setting), key = threshold_of(setting);
  const auto numbers = numbers_in(facts.files.text(path).value_or(""));
  if (numbers.empty()) return not_known(facts.files, path);
  const auto wanted = static_cast<long long>(limits.at(key));
  const std::string seen = size_text(static_cast<double>(numbers.back()));
  if (static_cast<double>(numbers.back()) < limits.at(key) && hides_speeds(facts)) {
    return no_speeds();
  }
  if (!has_fast_link(facts, limits)) {
    return ok(seen + "; no link is known to be fast", "the kernel's own");
  }
  Outcome outcome = ok(seen, "at least " + size_text(static_cast<double>(wanted)));
  if (numbers.back() >= wanted) return outcome;
  return warned(outcome, numbers.size() == 3 ? concat("sysctl -w ", setting, "=\"", numbers[0], " ",
                                                      numbers[1], " ", wanted, "\"")
                                             : concat("sysctl -w ", setting, "=", wanted));
}

Outcome judge_tcp_options(const Facts& facts, const Thresholds&) {
  Outcome outcome = ok("window scaling, SACK and timestamps are on", "all on");
  std::vector<std::string> off;
  std::string fix = "sysctl -w";
  for (const std::string name : {"tcp_window_scaling", "tcp_sack", "tcp_timestamps"}) {
    const std::string path = std::string(kNetworkSettings) + "ipv4/" + name;
    const auto value = facts.files.number(path);
    if (!value) return not_known(facts.files, path);
    if (*value != 0) continue;
    off.push_back(name);
    fix += " net.ipv4." + name + "=1";
  }
  if (off.empty()) return outcome;
  outcome.seen = list_text(off) + (off.size() == 1 ? " is off" : " are off");
  return warned(outcome, fix);
}

Outcome judge_fin_timeout(const Facts& facts, const Thresholds&) {
  const std::string path = std::string(kNetworkSettings) + "ipv4/tcp_fin_timeout";
  const auto value = facts.files.number(path);
  return value ? ok(concat(*value, " s")) : not_known(facts.files, path);
}

template <const char* setting>
Outcome judge_least(const Facts& facts, const Thresholds& limits) {
  return at_least(facts, file_of(setting), limits.at(threshold_of(setting)), setting);
}

Outcome judge_syncookies(const Facts& facts, const Thresholds&) {
  return at_least(facts, "/proc/sys/net/ipv4/tcp_syncookies", 1, "net.ipv4.tcp_syncookies");
}

bool is_reserved(const Facts& facts, long long port) {
  const auto list = facts.files.text("/proc/sys/net/ipv4/ip_local_reserved_ports");
  for (std::string range : comma_parts(list.value_or(""))) {
    std::replace(range.begin(), range.end(), '-', ' ');
    const auto ends = numbers_in(range);
    if (!ends.empty() && port >= ends.front() && port <= ends.back()) return true;
  }
  return false;
}

Outcome judge_port_range(const Facts& facts, const Thresholds& limits) {
  const std::string path = std::string(kNetworkSettings) + "ipv4/ip_local_port_range";
  const auto ends = numbers_in(facts.files.text(path).value_or(""));
  if (ends.size() != 2) return not_known(facts.files, path);
  const auto least = static_cast<long long>(limits.at("port_range.warn"));
  Outcome outcome = ok(concat(ends[0], "-", ends[1]),
                       concat("at least ", least, " ports, without 29400 and 29500"));
  for (const long long port : {29400, 29500}) {  // ddprund's, and MASTER_PORT's usual one
    if (port < ends[0] || port > ends[1] || is_reserved(facts, port)) continue;
    outcome.seen += concat(" has port ", port, " in it");
    return warned(outcome, "sysctl -w net.ipv4.ip_local_reserved_ports=29400,29500");
  }
  if (ends[1] - ends[0] + 1 >= least) return outcome;
  return warned(outcome, "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
}

Outcome judge_file_max(const Facts& facts, const Thresholds& limits) {
  return at_least(facts, "/proc/sys/fs/file-max", limits.at("file_max.warn"), "fs.file-max");
}

constexpr char kLimitsFile[] = "/proc/self/limits";
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct Limit {
  double soft = 0, hard = 0;
};

// Reads "Max open files            1024                 524288               files".
std::optional<Limit> find_limit(const Facts& facts, const std::string& name) {
  for (const std::string& line : lines_in(facts.files.text(kLimitsFile).value_or(""))) {
    if (!line.starts_with(name + " ")) continue;
    const auto words = words_in(line.substr(name.size()));
    if (words.size() < 2) return std::nullopt;
    const auto value = [](const std::string& word) {
      return word == "unlimited" ? kNoLimit : std::strtod(word.c_str(), nullptr);
    };
    return Limit{value(words[0]), value(words[1])};
  }
  return std::nullopt;
}

std::string limit_text(double limit) {
  return limit == kNoLimit ? "unlimited" : concat(static_cast<long long>(limit));
}

Outcome judge_open_files(const Facts& facts, const Thresholds& thresholds) {
  const auto limit = find_limit(facts, "Max open files");
  if (!limit) return not_known(facts.files, kLimitsFile);
  const double warn = thresholds.at("open_files.warn"), fail = thresholds.at("open_files.fail");
  Outcome outcome = ok(concat("soft ", limit_text(limit->soft), ", hard ", limit_text(limit->hard)),
                       "hard at least " + limit_text(warn) + "; ddprun raises the soft one to it");
  if (limit->hard >= warn) return outcome;
  return with_fix(limit->hard < fail ? Verdict::kFail : Verdict::kWarn, outcome,
                  "a line \"* hard nofile 1048576\" in /etc/security/limits.conf; of a service "
                  "LimitNOFILE=1048576; of a container --ulimit nofile=1048576");
}

Outcome judge_locked_memory(const Facts& facts, const Thresholds&) {
  const auto limit = find_limit(facts, "Max locked memory");
  if (!limit) return not_known(facts.files, kLimitsFile);
  const bool has_rdma = facts.rdma.not_asked.empty();
  Outcome outcome =
      ok(limit->hard == kNoLimit ? "unlimited" : "hard " + size_text(limit->hard), "unlimited");
  if (limit->hard == kNoLimit) return outcome;
  return with_fix(has_rdma ? Verdict::kFail : Verdict::kWarn, outcome,
                  "a line \"* - memlock unlimited\" in /etc/security/limits.conf; of a service "
                  "LimitMEMLOCK=infinity; of a container --ulimit memlock=-1");
}

Outcome judge_processes(const Facts& facts, const Thresholds& thresholds) {
  const auto limit = find_limit(facts, "Max processes");
  if (!limit) return not_known(facts.files, kLimitsFile);
  double least = facts.uid == 0 ? kNoLimit : limit->hard;  // it doesn't bind root
  std::string which = "ulimit -u";
  const auto take = [&](const std::string& path, const std::string& name) {
    const auto value = facts.files.number(path);
    if (!value || static_cast<double>(*value) >= least) return;
    least = static_cast<double>(*value);
    which = name;
  };
  take("/proc/sys/kernel/pid_max", "kernel.pid_max");
  take("/proc/sys/kernel/threads-max", "kernel.threads-max");
  if (const auto own = own_cgroup(facts.files)) {
    take("/sys/fs/cgroup" + *own + "/pids.max",
         "pids.max of the cgroup " + (own->empty() ? "/" : *own));
  }
  const double wanted = thresholds.at("processes.warn");
  Outcome outcome = ok(which + " is " + limit_text(least), "at least " + limit_text(wanted));
  if (least >= wanted) return outcome;
  return warned(outcome, which.starts_with("kernel.") ? "sysctl -w " + which + "=4194304"
                         : which.starts_with("pids.max")
                             ? "of a service TasksMax=infinity; of a container "
                               "--pids-limit=-1"
                             : "a line \"* - nproc unlimited\" in "
                               "/etc/security/limits.conf");
}

Outcome judge_core_dumps(const Facts& facts, const Thresholds&) {
  const auto limit = find_limit(facts, "Max core file size");
  if (!limit) return not_known(facts.files, kLimitsFile);
  const std::string size = limit->soft == kNoLimit ? "unlimited" : size_text(limit->soft);
  const std::string pattern =
      facts.files.text("/proc/sys/kernel/core_pattern").value_or("an unknown place");
  return ok("soft " + size + ", to " + one_line(pattern));
}

Outcome judge_shared_memory(const Facts& facts, const Thresholds& limits) {
  if (!facts.shared_memory.answer) return no_answer(facts.shared_memory, "/dev/shm");
  const DirectorySpace& space = *facts.shared_memory.answer;
  const double warn = limits.at("shared_memory.warn"), fail = limits.at("shared_memory.fail");
  const double free_percent = limits.at("shared_memory.free_warn");
  Outcome outcome;
  outcome.wanted = concat("at least ", size_text(warn), ", ", free_percent, " % of it free");
  constexpr char kLarger[] = "mount -o remount,size=50% /dev/shm; in a container --shm-size=8g";
  if (space.error != 0) {
    outcome.seen = "/dev/shm: " + errno_text(space.error);
    return failed(outcome, kLarger);
  }
  const auto total = static_cast<double>(space.total_bytes);
  const auto free = static_cast<double>(space.free_bytes);
  outcome.seen = size_text(total) + ", " + size_text(free) + " free";
  if (total <= fail) return failed(outcome, kLarger);
  if (total < warn) return warned(outcome, kLarger);
  if (free * 100 >= total * free_percent) return outcome;
  return warned(outcome, "ls -l /dev/shm, and remove what jobs that are gone have left there");
}

// RemoveIPC's last line counts, from the main file, then from the .d folders. systemd's default is
// yes.
Outcome judge_remove_ipc(const Facts& facts, const Thresholds&) {
  constexpr uid_t kFirstUser = 1000;
  const Readings& files = facts.files;
  if (!files.find("/run/systemd/seats") && !files.text("/etc/systemd/logind.conf")) {
    return skipped("no systemd-logind here");
  }
  if (facts.uid < kFirstUser) return skipped("system users are left alone by it");
  std::string value = "yes";
  std::vector<std::string> paths = {"/etc/systemd/logind.conf"};
  for (const std::string folder : {"/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"}) {
    for (const std::string& name : files.names_in(folder)) paths.push_back(folder + "/" + name);
  }
  for (const std::string& path : paths) {
    for (const std::string& line : lines_in(files.text(path).value_or(""))) {
      if (line.starts_with("RemoveIPC=")) value = line.substr(sizeof "RemoveIPC=" - 1);
    }
  }
  const bool is_off = value == "no" || value == "false" || value == "0" || value == "off";
  Outcome outcome = ok("RemoveIPC=" + one_line(value), "no");
  if (is_off) return outcome;
  return warned(outcome,
                "RemoveIPC=no under [Login] in /etc/systemd/logind.conf, and systemctl restart "
                "systemd-logind");
}

Outcome judge_huge_pages(const Facts& facts, const Thresholds&) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  const auto text = facts.files.text(path);
  return text ? ok(one_line(*text)) : not_known(facts.files, path);
}

Outcome judge_swappiness(const Facts& facts, const Thresholds&) {
  const std::string path = "/proc/sys/vm/swappiness";
  const auto value = facts.files.number(path);
  if (!value) return not_known(facts.files, path);
  const auto overcommit = facts.files.text("/proc/sys/vm/overcommit_memory");
  return ok(concat(*value, ", overcommit_memory ", overcommit.value_or("not known")));
}

Outcome judge_clocksource(const Facts& facts, const Thresholds&) {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const auto name = facts.files.text(folder + "current_clocksource");
  if (!name) return not_known(facts.files, folder + "current_clocksource");
  Outcome outcome = ok(one_line(*name), "one that is read without a system call (tsc)");
  for (const char* fast :
       {"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "timebase"}) {
    if (*name == fast) return outcome;
  }
  const std::string available = facts.files.text(folder + "available_clocksource").value_or("");
  return warned(outcome, available.find("tsc") != std::string::npos
                             ? "echo tsc > " + folder + "current_clocksource"
                             : "dmesg | grep -i tsc says why the kernel doesn't use tsc");
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
  return warned(outcome, "cpupower frequency-set -g performance");
}

Outcome judge_numa_balancing(const Facts& facts, const Thresholds&) {
  const std::string path = "/proc/sys/kernel/numa_balancing";
  const auto value = facts.files.number(path);
  if (!value) return not_known(facts.files, path);
  const std::size_t num_nodes = facts.files.names_in("/sys/devices/system/node").size();
  Outcome outcome = ok(std::to_string(*value), "0");
  if (*value == 0) return outcome;
  if (num_nodes < 2) return ok(concat(*value, ", with one NUMA node"), "0");
  return warned(outcome, "sysctl -w kernel.numa_balancing=0");
}

// Groups GPUs, interfaces and adapters by their NUMA node; devices without one are left out.
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
  const auto allowed = own_cpus(facts.files);
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
  outcome.seen = "only CPUs " + to_text(*allowed) + " may be used, none near " + list_text(away, 2);
  return warned(outcome,
                "allow them: the cgroup's cpuset.cpus, --cpuset-cpus, taskset, the scheduler's "
                "CPUs for each GPU");
}

Outcome judge_clock_sync(const Facts& facts, const Thresholds&) {
  if (!facts.is_clock_synchronised) return skipped("the kernel doesn't say");
  if (*facts.is_clock_synchronised) return ok("synchronised", "synchronised");
  return {Verdict::kWarn, "nothing keeps this clock right", "synchronised",
          "systemctl enable --now chrony (or systemd-timesyncd)"};
}

}  // namespace

std::vector<Check> host_checks() {
  static constexpr char kBuffers[] = "one connection can't fill a fast link with a smaller buffer";
  return {
      {"rmem_max", "sysctl", "net.core.rmem_max", kBuffers, judge_buffer<kRmemMax>},
      {"wmem_max", "sysctl", "net.core.wmem_max", kBuffers, judge_buffer<kWmemMax>},
      {"tcp_rmem", "sysctl", "net.ipv4.tcp_rmem, the largest", kBuffers, judge_buffer<kTcpRmem>},
      {"tcp_wmem", "sysctl", "net.ipv4.tcp_wmem, the largest", kBuffers, judge_buffer<kTcpWmem>},
      {"tcp_options", "sysctl", "net.ipv4.tcp_window_scaling, tcp_sack, tcp_timestamps",
       "without them TCP is slow after a loss, and beyond 64 KiB in flight", judge_tcp_options},
      {"tcp_fin_timeout", "sysctl", "net.ipv4.tcp_fin_timeout",
       "how long a half-closed connection is kept; shown only", judge_fin_timeout},
      {"somaxconn", "sysctl", "net.core.somaxconn",
       "connections wait in a queue of this length when all workers come at once; what finds it "
       "full is late by seconds",
       judge_least<kSomaxconn>},
      {"tcp_max_syn_backlog", "sysctl", "net.ipv4.tcp_max_syn_backlog",
       "likewise for connections that are half made", judge_least<kSynBacklog>},
      {"tcp_syncookies", "sysctl", "net.ipv4.tcp_syncookies",
       "without them connections beyond the backlog are dropped", judge_syncookies},
      {"port_range", "sysctl", "net.ipv4.ip_local_port_range, ip_local_reserved_ports",
       "an outgoing connection may take a port in it just before a job listens there",
       judge_port_range},
      {"file_max", "sysctl", "fs.file-max", "all processes together may have so many files open",
       judge_file_max},
      {"open_files", "limits", "/proc/self/limits, open files",
       "each worker has some for every peer and every data file; beyond the limit it fails with "
       "\"too many open files\"",
       judge_open_files},
      {"locked_memory", "limits", "/proc/self/limits, locked memory",
       "RDMA and pinned buffers are locked memory: with RDMA NCCL fails to register them",
       judge_locked_memory},
      {"processes", "limits",
       "/proc/self/limits, kernel.pid_max, threads-max, the cgroup's pids.max",
       "threads count: data loaders and NCCL have dozens for each worker", judge_processes},
      {"core_dumps", "limits", "/proc/self/limits, kernel.core_pattern",
       "where a worker that crashes leaves its memory; shown only", judge_core_dumps},
      {"shared_memory", "memory", "statvfs /dev/shm",
       "workers of a node, NCCL and data loaders meet there; a write beyond its end is SIGBUS",
       judge_shared_memory},
      {"remove_ipc", "memory", "/etc/systemd/logind.conf and its .d",
       "when the user's last session ends, logind removes his shared memory under running jobs",
       judge_remove_ipc},
      {"transparent_hugepages", "memory", "/sys/kernel/mm/transparent_hugepage/enabled",
       "large pages help some programs and stall others; shown only", judge_huge_pages},
      {"swappiness", "memory", "vm.swappiness, vm.overcommit_memory",
       "what the kernel does when memory gets short; shown only", judge_swappiness},
      {"clocksource", "cpu", "/sys/devices/system/clocksource/clocksource0",
       "programs that train ask for the time many thousand times a second", judge_clocksource},
      {"cpu_governor", "cpu", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
       "other governors lower the frequency between two steps", judge_governor},
      {"numa_balancing", "cpu", "kernel.numa_balancing",
       "it takes pages away from workers to see who uses them", judge_numa_balancing},
      {"numa_affinity", "cpu", "/sys/devices/system/node, this process' affinity",
       "a worker far from its GPU or adapter copies over the sockets' link", judge_numa_affinity},
      {"clock_sync", "cpu", "adjtimex(2)",
       "logs of several nodes can't be put in order, certificates expire early or late",
       judge_clock_sync},
  };
}

}  // namespace ddprun::doctor
