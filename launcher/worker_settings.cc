// SPDX-License-Identifier: Apache-2.0
#include "launcher/worker_settings.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "common/env_names.h"

namespace ddprun::launcher {
namespace {

std::optional<int> terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

agent::WorkerCommand worker_command(const JobPlan& plan) {
  return {plan.program.argv, plan.program.is_torchruns};
}

agent::WorkerEnvironmentOptions worker_environment_options(const JobPlan& plan) {
  agent::WorkerEnvironmentOptions options;
  options.inherited = plan.environment;
  // A ddprun that a worker starts would find its port taken, and its job is another one.
  for (const char* prefix : {env::kOwnPrefix, env::kPetPrefix}) {
    options.inherited.erase(std::string(prefix) + "METRICS");
    options.inherited.erase(std::string(prefix) + "EVENTS");
  }
  options.run_id = plan.rendezvous.job_id;
  options.role = plan.config.role;
  options.signals_to_handle = plan.config.signals_to_handle.text;
  options.max_restarts = plan.config.max_restarts;
  options.num_workers = plan.num_workers;
  options.devices = plan.placement.devices;
  options.recovers_in_place = plan.config.recovery == membership::Recovery::kInPlace;
  options.terminal_columns = terminal_columns();
  return options;
}

}  // namespace ddprun::launcher
