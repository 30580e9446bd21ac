// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

constexpr char kLimitsFile[] = "/proc/self/limits";
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct Limit {
  double soft = 0, hard = 0;
};

// "Max open files            1024                 524288               files".
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
  outcome.verdict = limit->hard < fail ? Verdict::kFail : Verdict::kWarn;
  outcome.fix =
      "a line \"* hard nofile 1048576\" in /etc/security/limits.conf; of a service "
      "LimitNOFILE=1048576; of a container --ulimit nofile=1048576";
  return outcome;
}

Outcome judge_locked_memory(const Facts& facts, const Thresholds&) {
  const auto limit = find_limit(facts, "Max locked memory");
  if (!limit) return not_known(facts.files, kLimitsFile);
  const bool has_rdma = facts.rdma.not_asked.empty();
  Outcome outcome =
      ok(limit->hard == kNoLimit ? "unlimited" : "hard " + size_text(limit->hard), "unlimited");
  if (limit->hard == kNoLimit) return outcome;
  outcome.verdict = has_rdma ? Verdict::kFail : Verdict::kWarn;
  outcome.fix =
      "a line \"* - memlock unlimited\" in /etc/security/limits.conf; of a service "
      "LimitMEMLOCK=infinity; of a container --ulimit memlock=-1";
  return outcome;
}

Outcome judge_processes(const Facts& facts, const Thresholds& thresholds) {
  const auto limit = find_limit(facts, "Max processes");
  if (!limit) return not_known(facts.files, kLimitsFile);
  double least = facts.uid == 0 ? kNoLimit : limit->hard;  // root has no such limit
  std::string which = "ulimit -u";
  const auto take = [&](const std::string& path, const std::string& name) {
    const auto value = facts.files.number(path);
    if (!value || static_cast<double>(*value) >= least) return;
    least = static_cast<double>(*value);
    which = name;
  };
  take("/proc/sys/kernel/pid_max", "kernel.pid_max");
  take("/proc/sys/kernel/threads-max", "kernel.threads-max");
  for (const std::string& line : lines_in(facts.files.text("/proc/self/cgroup").value_or(""))) {
    if (!line.starts_with("0::")) continue;
    const std::string own = line == "0::/" ? "" : line.substr(3);
    take("/sys/fs/cgroup" + own + "/pids.max", "pids.max of the cgroup " + line.substr(3));
  }
  const double wanted = thresholds.at("processes.warn");
  Outcome outcome = ok(which + " is " + limit_text(least), "at least " + limit_text(wanted));
  if (least >= wanted) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix = which.starts_with("kernel.")    ? "sysctl -w " + which + "=4194304"
                : which.starts_with("pids.max") ? "of a service TasksMax=infinity; of a container "
                                                  "--pids-limit=-1"
                                                : "a line \"* - nproc unlimited\" in "
                                                  "/etc/security/limits.conf";
  return outcome;
}

Outcome judge_core_dumps(const Facts& facts, const Thresholds&) {
  const auto limit = find_limit(facts, "Max core file size");
  if (!limit) return not_known(facts.files, kLimitsFile);
  const std::string size = limit->soft == kNoLimit ? "unlimited" : size_text(limit->soft);
  const std::string pattern =
      facts.files.text("/proc/sys/kernel/core_pattern").value_or("an unknown place");
  return ok("soft " + size + ", to " + one_line(pattern));
}

}  // namespace

std::vector<Check> limit_checks() {
  static constexpr char kGroup[] = "limits";
  return {
      {"open_files", kGroup, "/proc/self/limits, open files",
       "each worker has some for every peer and every data file; beyond the limit it fails with "
       "\"too many open files\"",
       judge_open_files},
      {"locked_memory", kGroup, "/proc/self/limits, locked memory",
       "RDMA and pinned buffers are locked memory: with RDMA NCCL fails to register them",
       judge_locked_memory},
      {"processes", kGroup, "/proc/self/limits, kernel.pid_max, threads-max, the cgroup's pids.max",
       "threads count: data loaders and NCCL have dozens for each worker", judge_processes},
      {"core_dumps", kGroup, "/proc/self/limits, kernel.core_pattern",
       "where a worker that crashes leaves its memory; shown only", judge_core_dumps},
  };
}

}  // namespace ddprun::doctor
