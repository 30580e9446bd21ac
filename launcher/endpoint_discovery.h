// SPDX-License-Identifier: Apache-2.0
// Finds where a job's nodes meet, and the job's name, from flags, environment, scheduler and config
// file. The first found wins (docs/launcher.md has the order). Pure: no look-up, no clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/launch_config.h"
#include "launcher/scheduler_step.h"

namespace ddprun::launcher {

enum class RendezvousMode {
  kLocal,    // this node alone: loopback, any port, served here
  kElastic,  // nodes meet at the endpoint and get their ranks there
  kStatic,   // the endpoint is MASTER_ADDR:MASTER_PORT, served by --node-rank=0
};

struct RendezvousPlan {
  RendezvousMode mode = RendezvousMode::kLocal;
  Endpoint endpoint;  // the first one
  // kElastic: the other endpoints (standby_header.h). Then a ddprund serves each, and no node does.
  std::vector<Endpoint> others;
  std::string origin;  // who named it: "--rdzv-endpoint", "DDPRUN_RDZV_ENDPOINT", a path, …
  std::optional<bool> is_host;  // whether this node serves, if told; unset: look at its interfaces
  std::string job_id;
  std::optional<int> node_rank;  // --node-rank, or the scheduler's; unset: by order of arrival

  std::vector<Endpoint> endpoints() const;  // all of them
};

// A plan, or one problem with its correction. If nothing was found, `problem` is empty and
// `nothing_found` is set: the caller makes the message, since it shows this host's address.
struct Discovery {
  std::optional<RendezvousPlan> plan;
  bool nothing_found = false;
  std::string problem;
  std::string note;                    // on the plan; empty: nothing to tell
  std::vector<std::string> looked_at;  // why sources that were found can't be used, for the message
};

struct DiscoveryInput {
  const LaunchConfig& config;
  const Environment& environment;
  const std::vector<ConfigFile>& files;  // the strongest first
  std::optional<SchedulerStep> step{};
  unsigned user_id = 0;
  std::string random_id;  // the job id if nobody else needs to know it
};

Discovery discover_endpoint(const DiscoveryInput& input);

// The error of a job of several nodes that nobody told where to meet. Its lines say what is
// missing, give each node's command with `address` (this host's), and other ways. They also name
// sources that were found but can't be used. Pure.
std::string no_endpoint_message(const LaunchConfig& config, const std::string& address,
                                const std::vector<std::string>& looked_at);

}  // namespace ddprun::launcher
