// SPDX-License-Identifier: Apache-2.0
// From what the user asked for to what is to be done: every look-up that needs no network.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/endpoint_discovery.h"
#include "launcher/launch_config.h"
#include "launcher/program_lookup.h"

namespace ddprun::launcher {

struct JobPlan {
  LaunchConfig config;
  Environment environment;
  RendezvousPlan rendezvous;
  Program program;
  int num_workers = 1;
  std::string topology;  // of a job of several nodes; empty: not known
};

struct Preparation {
  JobPlan plan;
  std::vector<std::string> problems;  // not empty: print each and exit 2
  std::vector<std::string> notes;     // to print, when there is no problem
};

// `argv0` as main() got it.
Preparation prepare(LaunchConfig config, Environment environment, const std::string& argv0);

}  // namespace ddprun::launcher
