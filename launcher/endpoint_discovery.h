// SPDX-License-Identifier: Apache-2.0
// Finds where a job's nodes meet, and the job's name. Flags, environment, scheduler, config file:
// the first found wins (docs/launcher.md has the order). Pure: no look-up, no clock.
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
  // kElastic: further ones (standby_header.h). Then each is a ddprund's, and no node serves.
  std::vector<Endpoint> others;
  std::string origin;  // who said so: "--rdzv-endpoint", "DDPRUN_RDZV_ENDPOINT", a path, …
  std::optional<bool> is_host;  // told whether this node serves; unset: look at its interfaces
  std::string job_id;
  std::optional<int> node_rank;  // --node-rank, or the scheduler's; unset: by order of arrival

  std::vector<Endpoint> endpoints() const;  // all of them
};

// Either a plan, or the one problem that keeps this from being one: what is wrong, and how to
// correct it. "Nothing found" is an empty `problem` with `nothing_found` set: the caller words it,
// since the line to paste holds this host's address.
struct Discovery {
  std::optional<RendezvousPlan> plan;
  bool nothing_found = false;
  std::string problem;
  std::string note;                    // of the plan; empty: nothing to tell
  std::vector<std::string> looked_at;  // of what was found unusable: why, for the message
};

struct DiscoveryInput {
  const LaunchConfig& config;
  const Environment& environment;
  const std::vector<ConfigFile>& files;  // first one first
  std::optional<SchedulerStep> step{};
  unsigned user_id = 0;
  std::string random_id;  // the job id where nobody else shall know it
};

Discovery discover_endpoint(const DiscoveryInput& input);

// The error of a job of several nodes that nobody told where to meet. Several lines: what is
// missing, the command for each node with `address` (this host's) filled in, and the other ways.
// Also what was found but could not be used. Pure.
std::string no_endpoint_message(const LaunchConfig& config, const std::string& address,
                                const std::vector<std::string>& looked_at);

}  // namespace ddprun::launcher
