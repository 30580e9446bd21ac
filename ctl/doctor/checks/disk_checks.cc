// SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "common/error.h"
#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

Outcome judge_directory(const Asked<DirectorySpace>& asked, const Thresholds& limits,
                        const std::string& flag) {
  if (!asked.answer) return no_answer(asked, flag);
  const DirectorySpace& space = *asked.answer;
  const auto total = static_cast<double>(space.total_bytes);
  const auto free = static_cast<double>(space.free_bytes);
  const double least = limits.at("disk.fail"), used_warn = limits.at("disk.used_warn");
  Outcome outcome;
  outcome.wanted = concat("at least ", size_text(least), " free, at most ", used_warn, " % used");
  outcome.fix = "make room, or set " + flag + " to another directory";
  if (space.error != 0) {
    outcome.verdict = Verdict::kFail;
    outcome.seen = one_line(space.path) + ": " + errno_text(space.error);
    return outcome;
  }
  const double used = total > 0 ? (total - free) * 100 / total : 0;
  outcome.seen = concat(one_line(space.path), ": ", size_text(free), " free, ",
                        static_cast<int>(used), " % used");
  if (space.is_read_only) {
    outcome.verdict = Verdict::kFail;
    outcome.seen = one_line(space.path) + ": a read-only file system";
  } else if (free < least) {
    outcome.verdict = Verdict::kFail;
  } else if (used > used_warn) {
    outcome.verdict = Verdict::kWarn;
  } else {
    outcome.fix.clear();
  }
  return outcome;
}

Outcome judge_tmp_dir(const Facts& facts, const Thresholds& limits) {
  return judge_directory(facts.tmp_dir, limits, "TMPDIR");
}

Outcome judge_state_dir(const Facts& facts, const Thresholds& limits) {
  const auto& answer = facts.state_dir.answer;
  if (answer && answer->error == ENOENT && answer->path == "/var/lib/ddprun") {
    return skipped("no --state-dir, and there is no /var/lib/ddprun");
  }
  return judge_directory(facts.state_dir, limits, "--state-dir");
}

Outcome judge_log_dir(const Facts& facts, const Thresholds& limits) {
  return judge_directory(facts.log_dir, limits, "--log-dir");
}

// Controllers that are ours to hand on.
Outcome judge_cgroup(const Facts& facts, const Thresholds&) {
  const std::string top = "/sys/fs/cgroup";
  std::string own;
  bool is_v2 = false;
  const auto cgroup = facts.files.text("/proc/self/cgroup");
  if (!cgroup) return not_known(facts.files, "/proc/self/cgroup");
  for (const std::string& line : lines_in(*cgroup)) {
    if (!line.starts_with("0::")) continue;
    is_v2 = facts.files.text(top + "/cgroup.controllers").has_value();
    own = line == "0::/" ? "" : line.substr(3);
  }
  Outcome outcome = ok("", "version 2, with memory and pids");
  if (!is_v2) {
    outcome.verdict = Verdict::kWarn;
    outcome.seen = "version 1";
    outcome.fix = "systemd.unified_cgroup_hierarchy=1 on the kernel's command line";
    return outcome;
  }
  const std::string text = facts.files.text(top + own + "/cgroup.controllers").value_or("");
  outcome.seen = "version 2, with " + (text.empty() ? "no controller" : one_line(text));
  const auto words = words_in(text);
  const auto has = [&](const char* name) {
    for (const std::string& word : words) {
      if (word == name) return true;
    }
    return false;
  };
  if (has("memory") && has("pids")) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix =
      "of a service Delegate=yes; of users a drop-in with Delegate=cpu cpuset io memory "
      "pids in /etc/systemd/system/user@.service.d";
  return outcome;
}

}  // namespace

std::vector<Check> disk_checks() {
  return {
      {"tmp_dir", "disk", "statvfs $TMPDIR or /tmp",
       "sockets, error files and logs of a job are made there", judge_tmp_dir},
      {"state_dir", "disk", "statvfs --state-dir, else $STATE_DIRECTORY or /var/lib/ddprun",
       "ddprund's journal: while it can't be written a restart forgets jobs", judge_state_dir},
      {"log_dir", "disk", "statvfs --log-dir", "workers' log files; a full disk loses them",
       judge_log_dir},
      {"cgroup", "cgroup", "/proc/self/cgroup, cgroup.controllers",
       "limits for a worker, and a sure word on who ran out of memory, come from cgroups",
       judge_cgroup},
  };
}

}  // namespace ddprun::doctor
