// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"
#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

Outcome judge_shared_memory(const Facts& facts, const Thresholds& limits) {
  if (!facts.shared_memory.answer) return no_answer(facts.shared_memory, "/dev/shm");
  const DirectorySpace& space = *facts.shared_memory.answer;
  const double warn = limits.at("shared_memory.warn"), fail = limits.at("shared_memory.fail");
  const double free_percent = limits.at("shared_memory.free_warn");
  Outcome outcome;
  outcome.wanted = concat("at least ", size_text(warn), ", ", free_percent, " % of it free");
  outcome.fix = "mount -o remount,size=50% /dev/shm; in a container --shm-size=8g";
  if (space.error != 0) {
    outcome.verdict = Verdict::kFail;
    outcome.seen = "/dev/shm: " + errno_text(space.error);
    return outcome;
  }
  const auto total = static_cast<double>(space.total_bytes);
  const auto free = static_cast<double>(space.free_bytes);
  outcome.seen = size_text(total) + ", " + size_text(free) + " free";
  if (total <= fail) {
    outcome.verdict = Verdict::kFail;
  } else if (total < warn) {
    outcome.verdict = Verdict::kWarn;
  } else if (free * 100 < total * free_percent) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = "ls -l /dev/shm, and remove what jobs that are gone have left there";
  } else {
    outcome.fix.clear();
  }
  return outcome;
}

// The last line counts, of the file and then of those beside it; systemd's default is yes.
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
  outcome.verdict = Verdict::kWarn;
  outcome.fix =
      "RemoveIPC=no under [Login] in /etc/systemd/logind.conf, and systemctl restart "
      "systemd-logind";
  return outcome;
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

}  // namespace

std::vector<Check> memory_checks() {
  static constexpr char kGroup[] = "memory";
  return {
      {"shared_memory", kGroup, "statvfs /dev/shm",
       "workers of a node, NCCL and data loaders meet there; a write beyond its end is SIGBUS",
       judge_shared_memory},
      {"remove_ipc", kGroup, "/etc/systemd/logind.conf and its .d",
       "when the user's last session ends, logind removes his shared memory under running jobs",
       judge_remove_ipc},
      {"transparent_hugepages", kGroup, "/sys/kernel/mm/transparent_hugepage/enabled",
       "large pages help some programs and stall others; shown only", judge_huge_pages},
      {"swappiness", kGroup, "vm.swappiness, vm.overcommit_memory",
       "what the kernel does when memory gets short; shown only", judge_swappiness},
  };
}

}  // namespace ddprun::doctor
