// SPDX-License-Identifier: Apache-2.0
// A command line that standing agents run: whether it is one, what is submitted, and following it
// (docs/nodes.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/environment.h"
#include "common/service_manager.h"
#include "launcher/cli.h"
#include "rendezvous/gangs/gang.h"

namespace ddprun::launcher {

// It was typed, or a file or a variable says so and nothing else says how its nodes come together.
bool is_for_standing_agents(const CommandLine& line, const Environment& environment);

struct GangRequest {
  gangs::GangSpec spec;
  std::vector<Endpoint> endpoints;    // where the queue is
  std::vector<std::string> problems;  // not empty: print each and exit 2
  std::vector<std::string> notes;
};

// The submitting user, and the directory of the submission.
struct GangOrigin {
  std::string user;
  std::int64_t uid = 0;
  std::string directory;
  std::string random_id;
};

// Pure.
GangRequest plan_gang(const CommandLine& line, const Environment& environment,
                      const GangOrigin& origin);

// plan_gang() with what this process is.
GangRequest prepare_gang(const CommandLine& line, const Environment& environment);

// The text of --dry-run: the job that would be submitted, without the values of variables.
std::string gang_to_text(const GangRequest& request);

// Returns ddprun's exit status. Throws Error: it can't be submitted, or a file can't be read.
int run_gang(GangRequest request, const LaunchConfig& config, ServiceManager manager);

}  // namespace ddprun::launcher
