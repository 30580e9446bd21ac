// SPDX-License-Identifier: Apache-2.0
// Plans from hosts and options what is started where. Each node has the command that leads to its
// agent, the meaning of its failure, and the arguments of its ddprun.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "common/exit_codes.h"
#include "common/service_manager.h"
#include "launcher/cli.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/fleet.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct FleetPlan {
  FleetOptions fleet;
  std::vector<std::vector<std::string>> commands;  // of each node: leads to its agent
  std::vector<std::string> nproc_per_node;         // of each node
  channel::Job job;                                // as far as the nodes have it in common
  int num_ranked = 0;                              // so many nodes have a rank, the rest are spares
  std::string rdzv_conf;                           // as given
  std::vector<std::string> program;                // and its arguments
  std::vector<std::string> ssh;                    // the user's words
  std::string remote_program;
  std::vector<std::string> notes;
};

// Reads the hosts file, and what is to be known of this machine. Throws Error(kInvalidArgument):
// one line that says what is wrong.
FleetPlan plan_fleet(const CommandLine& line, const Environment& environment);

// The job of `node`. `serves`: it serves the rendezvous, at the host `place`; else the rendezvous
// is at `place` (HOST:PORT). Pure.
channel::Job job_at(const FleetPlan& plan, int node, const std::string& place, bool serves);

// False: an option that means something only to the launcher, or differs from node to node.
bool is_forwarded_option(const std::string& name);

// As the shell calls it where that is true: what lies behind links may be mounted elsewhere on
// other hosts. Empty: it is gone.
std::string working_directory(const Environment& environment);

// The user's `ssh` words, options that keep ssh from asking and from forwarding, the host, and
// `program` as the agent. If a word has "{host}" (`docker exec -i {host}`), no option is added. The
// host takes its place, and the program and its argument follow as words.
std::vector<std::string> agent_command(const std::vector<std::string>& ssh, const std::string& host,
                                       const std::string& program);

// A command of agent_command() that ended before its agent answered.
struct CommandFailure {
  ExitCode code = ExitCode::kRetryable;  // kUsage: trying again doesn't help
  std::string text;                      // one line, without the host
};
// `said`: the end of what it wrote to stderr, else to stdout.
CommandFailure command_failure(int wait_status, const std::string& said,
                               const std::vector<std::string>& ssh, const std::string& program);

// Runs the job to its end and prints the report. `environment`: of the ssh processes. Returns
// ddprun's exit status.
int run_on_hosts(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
                 ServiceManager manager);

}  // namespace ddprun::launcher
