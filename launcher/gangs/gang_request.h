// SPDX-License-Identifier: Apache-2.0
// Jobs that standing agents run (docs/nodes.md): recognises their command lines, submits the job,
// and follows it.
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

// Whether standing agents run the job: the flag was typed, or a file or variable says so and
// nothing else says how nodes meet.
bool is_for_standing_agents(const CommandLine& line, const Environment& environment);

struct GangRequest {
  gangs::GangSpec spec;
  std::vector<Endpoint> endpoints;    // where the queue is
  std::vector<std::string> problems;  // not empty: print each and exit 2
  std::vector<std::string> notes;
};

// The user and the directory of the submission.
struct GangOrigin {
  std::string user;
  std::int64_t uid = 0;
  std::string directory;
  std::string random_id;
};

// Makes the request. Pure.
GangRequest plan_gang(const CommandLine& line, const Environment& environment,
                      const GangOrigin& origin);

// Calls plan_gang() with this process' user and directory.
GangRequest prepare_gang(const CommandLine& line, const Environment& environment);

// Returns the text of --dry-run: the job that would be submitted, without values of variables.
std::string gang_to_text(const GangRequest& request);

// Runs the job. Returns ddprun's exit status. Throws Error if it can't be submitted, or a file
// can't be read.
int run_gang(GangRequest request, const LaunchConfig& config, ServiceManager manager);

}  // namespace ddprun::launcher
