// SPDX-License-Identifier: Apache-2.0
// Checks of directories, the cgroup, variables, and the rendezvous.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "common/cgroup_limits.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"
#include "ctl/number_texts.h"

namespace ddprun::doctor {
namespace {

constexpr char kTmpDir[] = "TMPDIR", kStateDir[] = "--state-dir", kLogDir[] = "--log-dir";

template <Asked<DirectorySpace> Facts::*asked, const char* flag>
Outcome judge_directory(const Facts& facts, const Thresholds& limits) {
  if (!(facts.*asked).answer) return no_answer(facts.*asked, flag);
  const DirectorySpace& space = *(facts.*asked).answer;
  const auto total = static_cast<double>(space.total_bytes);
  const auto free = static_cast<double>(space.free_bytes);
  const double least = limits.at("disk.fail"), used_warn = limits.at("disk.used_warn");
  const double used = total > 0 ? (total - free) * 100 / total : 0;
  const std::string what =
      space.error != 0     ? errno_text(space.error)
      : space.is_read_only ? "a read-only file system"
                           : concat(size_text(free), " free, ", static_cast<int>(used), " % used");
  const bool is_bad = space.error != 0 || space.is_read_only || free < least;
  const Outcome outcome =
      ok(one_line(space.path) + ": " + what,
         concat("at least ", size_text(least), " free, at most ", used_warn, " % used"));
  if (!is_bad && used <= used_warn) return outcome;
  return with_fix(is_bad ? Verdict::kFail : Verdict::kWarn, outcome,
                  concat("make room, or set ", flag, " to another directory"));
}

Outcome judge_state_dir(const Facts& facts, const Thresholds& limits) {
  const auto& answer = facts.state_dir.answer;
  if (answer && answer->error == ENOENT && answer->path == "/var/lib/ddprun") {
    return skipped("no --state-dir, and there is no /var/lib/ddprun");
  }
  return judge_directory<&Facts::state_dir, kStateDir>(facts, limits);
}

// Checks for controllers that this process may enable for its child cgroups.
Outcome judge_cgroup(const Facts& facts, const Thresholds&) {
  const std::string top = "/sys/fs/cgroup";
  if (!facts.files.text("/proc/self/cgroup")) return not_known(facts.files, "/proc/self/cgroup");
  const auto own = own_cgroup(facts.files);
  Outcome outcome = ok("version 1", "version 2, with memory and pids");
  if (!own || !facts.files.text(top + "/cgroup.controllers")) {
    return warned(outcome, "systemd.unified_cgroup_hierarchy=1 on the kernel's command line");
  }
  const std::string text = facts.files.text(top + *own + "/cgroup.controllers").value_or("");
  outcome.seen = "version 2, with " + (text.empty() ? "no controller" : one_line(text));
  const auto words = words_in(text);
  const auto has = [&](const char* name) {
    return std::find(words.begin(), words.end(), name) != words.end();
  };
  if (has("memory") && has("pids")) return outcome;
  return warned(outcome,
                "of a service Delegate=yes; of users a drop-in with Delegate=cpu cpuset io memory "
                "pids in /etc/systemd/system/user@.service.d");
}

Outcome judge_visible_devices(const Facts& facts, const Thresholds&) {
  const auto found = facts.environment.find(env::kCudaVisibleDevices);
  if (found == facts.environment.end()) return ok("unset", "unset, or GPUs that are here");
  const std::string name = env::kCudaVisibleDevices;
  Outcome outcome = ok(name + "=" + one_line(found->second), "unset, or GPUs that are here");
  const std::size_t num_gpus = facts.files.names_in("/proc/driver/nvidia/gpus").size();
  for (const std::string& each : comma_parts(found->second)) {
    const bool is_number = each.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::strtoull(each.c_str(), nullptr, 10) < num_gpus) continue;
    outcome.seen += concat(", and the driver lists ", counted(num_gpus, "GPU"));
    return warned(outcome, "unset " + name);
  }
  if (num_gpus > 0 && comma_parts(found->second).empty()) {
    outcome.seen +=
        concat(" hides ", num_gpus == 1 ? "the GPU" : concat("all ", num_gpus, " GPUs"));
    return warned(outcome, "unset " + name);
  }
  return outcome;
}

// In NCCL's variables "eth,ib" are prefixes, "^docker" means all others, "=eth0" are whole names.
// Gloo's have whole names.
bool names_one(const Facts& facts, std::string value, bool is_nccl) {
  if (value.empty() || (is_nccl && value.front() == '^')) return true;
  const bool is_whole = !is_nccl || value.front() == '=';
  if (is_nccl && value.front() == '=') value.erase(0, 1);
  for (std::string wanted : comma_parts(value)) {
    wanted.resize(std::min(wanted.find(':'), wanted.size()));
    const bool found =
        std::any_of(facts.interfaces.begin(), facts.interfaces.end(), [&](const std::string& each) {
          return is_whole ? each == wanted : each.starts_with(wanted);
        });
    if (found) return true;
  }
  return false;
}

Outcome judge_socket_interfaces(const Facts& facts, const Thresholds&) {
  Outcome outcome = ok("unset", "unset, or interfaces that are here");
  std::vector<std::string> seen;
  for (const std::string name :
       {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"}) {
    const auto value = find_variable(facts.environment, name);
    if (!value) continue;
    seen.push_back(name + "=" + one_line(*value));
    if (name == "UCX_NET_DEVICES" || names_one(facts, *value, name.starts_with("NCCL"))) continue;
    outcome.verdict = Verdict::kWarn;
    seen.back() +=
        " names none of " + list_text({facts.interfaces.begin(), facts.interfaces.end()}, 8);
    outcome.fix += (outcome.fix.empty() ? "unset " : " ") + name;
  }
  if (!seen.empty()) outcome.seen = list_text(seen);
  return outcome;
}

Outcome judge_proxies(const Facts& facts, const Thresholds&) {
  std::vector<std::string> set;
  for (const char* name :
       {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
    if (find_variable(facts.environment, name)) set.emplace_back(name);
  }
  Outcome outcome = ok("none is set", "none, or no_proxy beside them");
  if (set.empty()) return outcome;
  outcome.seen = list_text(set) + (set.size() == 1 ? " is set" : " are set");
  if (find_variable(facts.environment, "no_proxy") ||
      find_variable(facts.environment, "NO_PROXY")) {
    outcome.seen += ", no_proxy too";
    return outcome;
  }
  return warned(outcome, "no_proxy=localhost,127.0.0.1,.cluster (the names of your nodes)");
}

Outcome judge_launch_blocking(const Facts& facts, const Thresholds&) {
  const auto value = find_variable(facts.environment, "CUDA_LAUNCH_BLOCKING");
  if (!value || *value == "0") return ok("off", "off");
  return {Verdict::kWarn, "CUDA_LAUNCH_BLOCKING=" + one_line(*value), "off",
          "unset CUDA_LAUNCH_BLOCKING"};
}

Outcome judge_omp_threads(const Facts& facts, const Thresholds&) {
  const auto value = find_variable(facts.environment, env::kOmpNumThreads);
  if (!value) return ok("unset: ddprun sets it to 1 with several workers", "at most one per CPU");
  Outcome outcome = ok("OMP_NUM_THREADS=" + one_line(*value), "at most one per CPU");
  const auto cpus = own_cpus(facts.files);
  const int num_cpus = cpus ? cpus_of_quota(static_cast<int>(cpus->size()), facts.cpu_quota) : 0;
  const auto numbers = numbers_in(comma_parts(*value).empty() ? "" : comma_parts(*value).front());
  if (!numbers.empty() && numbers.front() > 0 && (num_cpus == 0 || numbers.front() <= num_cpus)) {
    return outcome;
  }
  if (num_cpus > 0) outcome.seen += concat(", and ", counted(num_cpus, "CPU"), " may be used");
  return warned(outcome, "unset OMP_NUM_THREADS, or CPUs / workers of the node");
}

Outcome judge_stacks(const Facts& facts, const Thresholds&) {
  if (!facts.stack_readers.answer) return no_answer(facts.stack_readers, "libdw and py-spy");
  const auto [libdw, py_spy] = *facts.stack_readers.answer;
  const Outcome outcome = ok(libdw && py_spy ? "libdw and py-spy"
                             : libdw         ? "libdw, without py-spy"
                             : py_spy        ? "py-spy, without libdw"
                                             : "neither libdw nor py-spy",
                             "libdw, and for Python's lines py-spy");
  if (libdw || py_spy) return outcome;
  return warned(outcome, "apt install libdw1, or dnf install elfutils-libs; pip install py-spy");
}

bool has_page(const Facts& facts) {
  return facts.rendezvous.answer && facts.rendezvous.answer->failure.empty();
}

Outcome no_page(const Facts& facts) {
  return facts.rendezvous.answer ? skipped("the rendezvous' status isn't known")
                                 : no_answer(facts.rendezvous, facts.endpoint);
}

Outcome judge_endpoint(const Facts& facts, const Thresholds&) {
  if (!facts.rendezvous.answer) return no_answer(facts.rendezvous, facts.endpoint);
  if (has_page(facts)) return ok(one_line(facts.endpoint) + " answers", "it answers");
  return {Verdict::kFail, one_line(facts.rendezvous.answer->failure), "it answers",
          "is ddprund running there, and is its port open? ddprunctl status --rdzv-endpoint=…"};
}

Outcome judge_endpoint_clock(const Facts& facts, const Thresholds& limits) {
  if (!has_page(facts)) return no_page(facts);
  const auto& skew = facts.rendezvous.answer->skew_seconds;
  if (!skew) return skipped("the rendezvous doesn't tell its time");
  const double most = limits.at("endpoint_clock.warn");
  const Outcome outcome = ok(ctl::printed("its clock is %.1f s ", std::abs(*skew)) +
                                 (*skew >= 0 ? "before ours" : "behind ours"),
                             concat("at most ", most, " s apart"));
  if (std::abs(*skew) <= most) return outcome;
  return warned(outcome, "chronyc tracking, or timedatectl, on both");
}

Outcome judge_endpoint_version(const Facts& facts, const Thresholds&) {
  if (!has_page(facts)) return no_page(facts);
  const std::string theirs = facts.rendezvous.answer->version, ours = DDPRUN_VERSION;
  if (theirs.empty()) return skipped("the rendezvous doesn't tell its version");
  Outcome outcome = ok("it is " + one_line(theirs) + ", this is " + ours, ours);
  if (theirs == ours) return outcome;
  const bool same_major = theirs.substr(0, theirs.find('.')) == ours.substr(0, ours.find('.'));
  return with_fix(same_major ? Verdict::kWarn : Verdict::kFail, outcome,
                  "install the same version of ddprun on all nodes");
}

}  // namespace

std::vector<Check> environment_checks() {
  return {
      {"tmp_dir", "disk", "statvfs $TMPDIR or /tmp",
       "sockets, error files and logs of a job are made there",
       judge_directory<&Facts::tmp_dir, kTmpDir>},
      {"state_dir", "disk", "statvfs --state-dir, else $STATE_DIRECTORY or /var/lib/ddprun",
       "ddprund's journal: while it can't be written a restart forgets jobs", judge_state_dir},
      {"log_dir", "disk", "statvfs --log-dir", "workers' log files; a full disk loses them",
       judge_directory<&Facts::log_dir, kLogDir>},
      {"cgroup", "cgroup", "/proc/self/cgroup, cgroup.controllers",
       "limits for a worker, and a sure word on who ran out of memory, come from cgroups",
       judge_cgroup},
      {"cuda_visible_devices", "environment", "CUDA_VISIBLE_DEVICES",
       "CUDA stops at the first GPU in it that isn't there", judge_visible_devices},
      {"socket_interfaces", "environment",
       "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME",
       "with a name that no interface has, NCCL and Gloo fail at their start",
       judge_socket_interfaces},
      {"proxies", "environment", "http_proxy, https_proxy, all_proxy, no_proxy",
       "programs (not ddprun) ask the proxy for other nodes, which it doesn't know", judge_proxies},
      {"launch_blocking", "environment", "CUDA_LAUNCH_BLOCKING",
       "each kernel is waited for: good for finding a fault, slow for all else",
       judge_launch_blocking},
      {"omp_num_threads", "environment", "OMP_NUM_THREADS",
       "more threads than CPUs wait for each other", judge_omp_threads},
      {"stacks", "environment", "libdw.so.1, py-spy in PATH",
       "a hang of a program that knows nothing of ddprun is told within a minute only by stacks",
       judge_stacks},
  };
}

std::vector<Check> endpoint_checks() {
  return {
      {"endpoint", "endpoint", "GET /v1/status of --rdzv-endpoint",
       "a node that doesn't reach the rendezvous is in no job", judge_endpoint},
      {"endpoint_clock", "endpoint", "its Date",
       "logs of several nodes can't be put in order, certificates expire early or late",
       judge_endpoint_clock},
      {"endpoint_version", "endpoint", "its version",
       "nodes and rendezvous of different versions may not understand each other",
       judge_endpoint_version},
  };
}

}  // namespace ddprun::doctor
