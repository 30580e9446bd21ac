// SPDX-License-Identifier: Apache-2.0
// From hosts and options to what is started where: for each node the command that leads to its
// agent and the arguments of its ddprun. Pure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/fleet.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct FleetRequest {
  const LaunchConfig& config;
  // Options as given, by name, without those that count for one machine only.
  const std::map<std::string, std::string>& given;
  const Environment& environment;
  std::string hostfile_text;  // of config.hosts.hostfile
  std::string directory;      // the working directory
  std::string own_program;    // this ddprun's file
  std::string own_host;       // as gethostname(2) says
  std::string random_id;
  // Whether a numeric address is on an interface of this machine.
  std::function<bool(const std::string& address)> is_own_address;
};

struct FleetPlan {
  std::string job_id;
  FleetOptions fleet;
  std::vector<std::vector<std::string>> commands;  // of each node: leads to its agent
  std::vector<channel::Job> jobs;                  // of each node, without where the nodes meet
  std::vector<std::string> nproc_per_node;         // of each node
  std::vector<std::string> ssh;                    // the user's words
  std::string remote_program;
  std::chrono::milliseconds keep_alive{0};  // of the channels; 0: none
  std::vector<std::string> notes;
  std::vector<std::string> problems;  // not empty: there is no plan
};

FleetPlan plan_fleet(const FleetRequest& request);

// What `node` gets: with the place where the nodes meet. `is_server`: it serves at `place` (a
// host), else they meet at `place` (HOST:PORT).
channel::Job job_at(const FleetPlan& plan, int node, const std::string& place, bool is_server);

// Options that mean something only to the launcher, or differ from node to node: see
// FleetRequest::given.
bool is_forwarded_option(const std::string& name);

}  // namespace ddprun::launcher
