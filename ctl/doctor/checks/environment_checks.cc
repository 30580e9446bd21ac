// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "common/cpu_set.h"
#include "common/env_names.h"
#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

std::vector<std::string> comma_parts(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  return words_in(text);
}

Outcome judge_visible_devices(const Facts& facts, const Thresholds&) {
  const auto found = facts.environment.find(env::kCudaVisibleDevices);
  if (found == facts.environment.end()) return ok("unset", "unset, or GPUs that are here");
  const std::string name = env::kCudaVisibleDevices;
  Outcome outcome = ok(name + "=" + one_line(found->second), "unset, or GPUs that are here");
  const std::size_t num_gpus = facts.files.names_in("/proc/driver/nvidia/gpus").size();
  outcome.fix = "unset " + name;
  for (const std::string& each : comma_parts(found->second)) {
    const bool is_number = each.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::strtoull(each.c_str(), nullptr, 10) < num_gpus) continue;
    outcome.verdict = Verdict::kWarn;
    outcome.seen += concat(", and the driver lists ", num_gpus, num_gpus == 1 ? " GPU" : " GPUs");
    return outcome;
  }
  if (num_gpus > 0 && comma_parts(found->second).empty()) {
    outcome.verdict = Verdict::kWarn;
    outcome.seen += concat(" hides all ", num_gpus, " GPUs");
    return outcome;
  }
  outcome.fix.clear();
  return outcome;
}

// NCCL's: "eth,ib" are beginnings, "^docker" all others, "=eth0" whole names. Gloo's are names.
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
  outcome.verdict = Verdict::kWarn;
  outcome.fix = "no_proxy=localhost,127.0.0.1,.cluster (the names of your nodes)";
  return outcome;
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
  long long num_cpus = 0;
  const std::string name = "Cpus_allowed_list:";
  for (const std::string& line : lines_in(facts.files.text("/proc/self/status").value_or(""))) {
    const auto words = words_in(line);
    if (words.size() < 2 || words[0] != name) continue;
    if (const auto cpus = parse_cpu_list(words[1])) num_cpus = cpus->size();
  }
  const auto numbers = numbers_in(comma_parts(*value).empty() ? "" : comma_parts(*value).front());
  if (!numbers.empty() && numbers.front() > 0 && (num_cpus == 0 || numbers.front() <= num_cpus)) {
    return outcome;
  }
  outcome.verdict = Verdict::kWarn;
  if (num_cpus > 0) outcome.seen += concat(", and ", num_cpus, " CPUs may be used");
  outcome.fix = "unset OMP_NUM_THREADS, or CPUs / workers of the node";
  return outcome;
}

}  // namespace

std::vector<Check> environment_checks() {
  static constexpr char kGroup[] = "environment";
  return {
      {"cuda_visible_devices", kGroup, "CUDA_VISIBLE_DEVICES",
       "CUDA stops at the first GPU in it that isn't there", judge_visible_devices},
      {"socket_interfaces", kGroup, "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME",
       "with a name that no interface has, NCCL and Gloo fail at their start",
       judge_socket_interfaces},
      {"proxies", kGroup, "http_proxy, https_proxy, all_proxy, no_proxy",
       "programs (not ddprun) ask the proxy for other nodes, which it doesn't know", judge_proxies},
      {"launch_blocking", kGroup, "CUDA_LAUNCH_BLOCKING",
       "each kernel is waited for: good for finding a fault, slow for all else",
       judge_launch_blocking},
      {"omp_num_threads", kGroup, "OMP_NUM_THREADS", "more threads than CPUs wait for each other",
       judge_omp_threads},
  };
}

}  // namespace ddprun::doctor
