// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace ddprun::launcher {
namespace {

std::string set_binding(const std::string& value, LaunchConfig& config) {
  const auto mode = agent::parse_binding_mode(value);
  if (!mode) return "must be node, socket, exclusive, core-complex or none";
  config.binding = *mode;
  return {};
}

std::string set_preflight_doctor(const std::string& value, LaunchConfig& config) {
  if (value != "off" && value != "fail" && value != "warn") return "must be off, fail or warn";
  config.preflight_doctor = value == "off"    ? DoctorGate::kOff
                            : value == "fail" ? DoctorGate::kFail
                                              : DoctorGate::kWarn;
  return {};
}

std::string set_observe(const std::string& value, LaunchConfig& config) {
  if (value != "on" && value != "off") return "must be on or off";
  config.observes = value == "on";
  return {};
}

std::string set_preload(const std::string& value, LaunchConfig& config) {
  config.preload.clear();
  config.preload_auto = value == "auto";
  if (config.preload_auto) return {};
  std::istringstream rest(value + ",");  // makes "a," have an empty name
  for (std::string name; std::getline(rest, name, ',');) {
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
      return c == '.' || c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
    });
    if (!is_name) return "must be auto, or names of Python modules: torch,torch._dynamo";
    config.preload.push_back(name);
  }
  return {};
}

}  // namespace

std::vector<Option> placement_options() {
  constexpr char kGroup[] = "CPUs and GPUs of a worker";
  using C = LaunchConfig;
  return {
      {"numa-binding", "node|socket|exclusive|core-complex|none", "none",
       "a worker may use the CPUs near its GPU, or a fair part of them (docs/binding.md)", kGroup,
       set_binding},
      {"show-binding", "", "", "say which CPUs each worker may use", kGroup,
       switch_to(&C::show_binding)},
      {"virtual-local-rank", "", "", "each worker sees one GPU only, and is LOCAL_RANK 0", kGroup,
       switch_to(&C::virtual_local_rank)},
  };
}

std::vector<Option> limits_options() {
  constexpr char kGroup[] = "Limits of a worker (docs/isolation.md)";
  std::vector<Option> options = {
      {"worker-memory", "SIZE", "none",
       "memory of a worker and all that it starts, without swap: 64G; beyond it the kernel ends it",
       kGroup, parsed_to(&LaunchConfig::worker_limits, agent::parse_memory_limit)},
      {"worker-pids", "N", "none", "processes and threads, likewise", kGroup,
       parsed_to(&LaunchConfig::worker_limits, agent::parse_pids_limit)},
      {"worker-cpuset", "LIST|binding", "none",
       "CPUs that a worker can't leave: 0-7,16, or those of --numa-binding's plan", kGroup,
       parsed_to(&LaunchConfig::worker_limits, agent::parse_cpuset)},
      {"worker-io", "DEVICE:KEY=N,…", "none",
       "a disk's share of a worker, a second: /data:rbps=1G,wbps=200M,riops=9000,wiops=500; may be "
       "given more than once",
       kGroup, parsed_to(&LaunchConfig::worker_limits, agent::parse_io_limits)},
      {"worker-limits", "required|best-effort", "best-effort",
       "a limit that this node can't enforce is an error, or is said and left out", kGroup,
       parsed_to(&LaunchConfig::worker_limits, agent::parse_limits_mode)},
  };
  for (Option& option : options) {
    option.repeats = option.name == "worker-io";
    option.separator = ';';
  }
  return options;
}

std::vector<Option> program_options() {
  constexpr char kRuns[] = "What runs";
  using C = LaunchConfig;
  return {
      {"preflight", "COMMAND", "",
       "run on this node before it joins; if it fails, the node stays out (docs/preflight.md)",
       kRuns, text_to(&C::preflight)},
      {"preflight-doctor", "off|fail|warn", "off",
       "look at this node with ddprunctl doctor before it joins; from this verdict on it stays out",
       kRuns, set_preflight_doctor},
      {"preflight-timeout", "SECONDS", "60", "a preflight that takes longer has failed", kRuns,
       positive_seconds_to(&C::preflight_timeout)},
      {"preload", "auto|MODULE,…", "",
       "import these Python modules once on each node, for all workers and restarts; auto: those "
       "that the workers "
       "have imported by their first step (docs/warm.md)",
       kRuns, set_preload},
      {"preload-cache", "DIR", "", "keep auto's list there, for the next job of this program",
       kRuns, text_to(&C::preload_cache)},
      {"preload-timeout", "SECONDS", "60", "workers don't wait longer for the imports", kRuns,
       positive_seconds_to(&C::preload_timeout)},
      {"observe", "on|off", "on",
       "see the steps of a plain PyTorch program, for those who look at the job (docs/observe.md); "
       "--no-observe: off",
       kRuns, set_observe},
      {"module", "", "", "PROGRAM is a Python module: python -u -m PROGRAM", kRuns,
       switch_to(&C::module), 'm'},
      {"no-python", "", "", "execute PROGRAM as it is, never by python", kRuns,
       switch_to(&C::no_python)},
      {"run-path", "", "", "PROGRAM is a Python script, whatever its name", kRuns,
       switch_to(&C::run_path)},
      {"role", "NAME", "default", "ROLE_NAME of the workers", kRuns, text_to(&C::role)},
  };
}

}  // namespace ddprun::launcher
