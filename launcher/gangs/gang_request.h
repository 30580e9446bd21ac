// SPDX-License-Identifier: Apache-2.0
// A command line that standing agents run: whether it is one, and what is submitted
// (docs/nodes.md). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/environment.h"
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

// Who submits, from where.
struct GangOrigin {
  std::string user;
  std::int64_t uid = 0;
  std::string directory;
  std::string random_id;
};

GangRequest plan_gang(const CommandLine& line, const Environment& environment,
                      const GangOrigin& origin);

}  // namespace ddprun::launcher
