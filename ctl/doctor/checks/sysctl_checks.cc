// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

constexpr char kNetworkSettings[] = "/proc/sys/net/";

bool has_fast_link(const Facts& facts, const Thresholds& limits) {
  return static_cast<double>(fastest_link(facts.files)) >= limits.at("fast_link.from");
}

// The largest buffer of a socket: only fast links want more than the kernel's own.
Outcome judge_buffer(const Facts& facts, const Thresholds& limits, const std::string& file,
                     const std::string& setting, const std::string& key) {
  const std::string path = kNetworkSettings + file;
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
  if (numbers.back() < wanted) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = numbers.size() == 3 ? concat("sysctl -w ", setting, "=\"", numbers[0], " ",
                                               numbers[1], " ", wanted, "\"")
                                      : concat("sysctl -w ", setting, "=", wanted);
  }
  return outcome;
}

Outcome judge_rmem_max(const Facts& facts, const Thresholds& limits) {
  return judge_buffer(facts, limits, "core/rmem_max", "net.core.rmem_max", "rmem_max.warn");
}
Outcome judge_wmem_max(const Facts& facts, const Thresholds& limits) {
  return judge_buffer(facts, limits, "core/wmem_max", "net.core.wmem_max", "wmem_max.warn");
}
Outcome judge_tcp_rmem(const Facts& facts, const Thresholds& limits) {
  return judge_buffer(facts, limits, "ipv4/tcp_rmem", "net.ipv4.tcp_rmem", "tcp_rmem.warn");
}
Outcome judge_tcp_wmem(const Facts& facts, const Thresholds& limits) {
  return judge_buffer(facts, limits, "ipv4/tcp_wmem", "net.ipv4.tcp_wmem", "tcp_wmem.warn");
}

Outcome judge_tcp_options(const Facts& facts, const Thresholds&) {
  Outcome outcome = ok("window scaling, SACK and timestamps are on", "all on");
  std::vector<std::string> off, fixes;
  for (const std::string name : {"tcp_window_scaling", "tcp_sack", "tcp_timestamps"}) {
    const std::string path = std::string(kNetworkSettings) + "ipv4/" + name;
    const auto value = facts.files.number(path);
    if (!value) return not_known(facts.files, path);
    if (*value != 0) continue;
    off.push_back(name);
    fixes.push_back("net.ipv4." + name + "=1");
  }
  if (off.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(off) + (off.size() == 1 ? " is off" : " are off");
  outcome.fix = "sysctl -w";
  for (const std::string& fix : fixes) outcome.fix += " " + fix;
  return outcome;
}

Outcome judge_fin_timeout(const Facts& facts, const Thresholds&) {
  const std::string path = std::string(kNetworkSettings) + "ipv4/tcp_fin_timeout";
  const auto value = facts.files.number(path);
  return value ? ok(concat(*value, " s")) : not_known(facts.files, path);
}

Outcome judge_somaxconn(const Facts& facts, const Thresholds& limits) {
  return at_least(facts, "/proc/sys/net/core/somaxconn", limits.at("somaxconn.warn"),
                  "net.core.somaxconn");
}

Outcome judge_syn_backlog(const Facts& facts, const Thresholds& limits) {
  return at_least(facts, "/proc/sys/net/ipv4/tcp_max_syn_backlog",
                  limits.at("tcp_max_syn_backlog.warn"), "net.ipv4.tcp_max_syn_backlog");
}

Outcome judge_syncookies(const Facts& facts, const Thresholds&) {
  return at_least(facts, "/proc/sys/net/ipv4/tcp_syncookies", 1, "net.ipv4.tcp_syncookies");
}

bool is_reserved(const Facts& facts, long long port) {
  std::string list = facts.files.text("/proc/sys/net/ipv4/ip_local_reserved_ports").value_or("");
  std::replace(list.begin(), list.end(), ',', ' ');
  for (std::string range : words_in(list)) {
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
    outcome.verdict = Verdict::kWarn;
    outcome.seen += concat(" has port ", port, " in it");
    outcome.fix = "sysctl -w net.ipv4.ip_local_reserved_ports=29400,29500";
    return outcome;
  }
  if (ends[1] - ends[0] + 1 < least) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"";
  }
  return outcome;
}

Outcome judge_file_max(const Facts& facts, const Thresholds& limits) {
  return at_least(facts, "/proc/sys/fs/file-max", limits.at("file_max.warn"), "fs.file-max");
}

}  // namespace

std::vector<Check> sysctl_checks() {
  static constexpr char kGroup[] = "sysctl";
  static constexpr char kBuffers[] = "one connection can't fill a fast link with a smaller buffer";
  return {
      {"rmem_max", kGroup, "net.core.rmem_max", kBuffers, judge_rmem_max},
      {"wmem_max", kGroup, "net.core.wmem_max", kBuffers, judge_wmem_max},
      {"tcp_rmem", kGroup, "net.ipv4.tcp_rmem, the largest", kBuffers, judge_tcp_rmem},
      {"tcp_wmem", kGroup, "net.ipv4.tcp_wmem, the largest", kBuffers, judge_tcp_wmem},
      {"tcp_options", kGroup, "net.ipv4.tcp_window_scaling, tcp_sack, tcp_timestamps",
       "without them TCP is slow after a loss, and beyond 64 KiB in flight", judge_tcp_options},
      {"tcp_fin_timeout", kGroup, "net.ipv4.tcp_fin_timeout",
       "how long a half-closed connection is kept; shown only", judge_fin_timeout},
      {"somaxconn", kGroup, "net.core.somaxconn",
       "connections wait in a queue of this length when all workers come at once; what finds it "
       "full is late by seconds",
       judge_somaxconn},
      {"tcp_max_syn_backlog", kGroup, "net.ipv4.tcp_max_syn_backlog",
       "likewise for connections that are half made", judge_syn_backlog},
      {"tcp_syncookies", kGroup, "net.ipv4.tcp_syncookies",
       "without them connections beyond the backlog are dropped", judge_syncookies},
      {"port_range", kGroup, "net.ipv4.ip_local_port_range, ip_local_reserved_ports",
       "an outgoing connection may take a port in it just before a job listens there",
       judge_port_range},
      {"file_max", kGroup, "fs.file-max", "all processes together may have so many files open",
       judge_file_max},
  };
}

}  // namespace ddprun::doctor
