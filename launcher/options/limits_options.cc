// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

namespace ddprun::launcher {
namespace {

OptionSetter limit_to(std::string (*parse)(std::string_view, agent::WorkerLimits&)) {
  return [parse](const std::string& value, LaunchConfig& config) {
    return parse(value, config.worker_limits);
  };
}

}  // namespace

std::vector<Option> limits_options() {
  constexpr char kGroup[] = "Limits of a worker (docs/isolation.md)";
  std::vector<Option> options = {
      {"worker-memory", "SIZE", "none",
       "memory of a worker and all that it starts, without swap: 64G; beyond it the kernel ends it",
       kGroup, limit_to(agent::parse_memory_limit)},
      {"worker-pids", "N", "none", "processes and threads, likewise", kGroup,
       limit_to(agent::parse_pids_limit)},
      {"worker-cpuset", "LIST|binding", "none",
       "CPUs that a worker can't leave: 0-7,16, or those of --numa-binding's plan", kGroup,
       limit_to(agent::parse_cpuset)},
      {"worker-io", "DEVICE:KEY=N,…", "none",
       "a disk's share of a worker, a second: /data:rbps=1G,wbps=200M,riops=9000,wiops=500; may be "
       "given more than once",
       kGroup, limit_to(agent::parse_io_limits)},
      {"worker-limits", "required|best-effort", "best-effort",
       "a limit that this node can't enforce is an error, or is said and left out", kGroup,
       limit_to(agent::parse_limits_mode)},
  };
  for (Option& option : options) {
    option.repeats = option.name == "worker-io";
    option.separator = ';';
  }
  return options;
}

}  // namespace ddprun::launcher
