// SPDX-License-Identifier: Apache-2.0
// Plans what is started on which host. Each node has the command that starts its agent, the meaning
// of that command's failure, and its ddprun's arguments.
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
  std::vector<std::vector<std::string>> commands;  // each node's: starts its agent
  std::vector<std::string> nproc_per_node;         // each node's
  channel::Job job;                                // the part that all nodes share
  int num_ranked = 0;                              // nodes that have a rank; the rest are spares
  std::string rdzv_conf;                           // as given
  std::vector<std::string> program;                // with its arguments
  std::vector<std::string> ssh;                    // the user's ssh command
  std::string remote_program;
  std::vector<std::string> notes;
};

// Reads the hosts file and facts about this machine. Throws Error(kInvalidArgument) with one line
// that says what is wrong.
FleetPlan plan_fleet(const CommandLine& line, const Environment& environment);

// Returns the job of `node`. `serves`: it serves the rendezvous, at the host `place`; else the
// rendezvous is at `place` (HOST:PORT). Pure.
channel::Job job_at(const FleetPlan& plan, int node, const std::string& place, bool serves);

// False: the option is only for the launcher, or differs between nodes.
bool is_forwarded_option(const std::string& name);

// Returns the directory's name as the shell has it, if that is right, since links may lead
// elsewhere on other hosts. Empty: the directory is gone.
std::string working_directory(const Environment& environment);

// Returns the command that starts an agent: the user's `ssh` words, options that keep ssh from
// asking and from forwarding, the host, and `program`. If a word has "{host}" (`docker exec -i
// {host}`), no option is added. The host replaces it, and the program and its argument follow as
// words.
std::vector<std::string> agent_command(const std::vector<std::string>& ssh, const std::string& host,
                                       const std::string& program);

// Why a command of agent_command() ended before its agent answered.
struct CommandFailure {
  ExitCode code = ExitCode::kRetryable;  // kUsage: another try doesn't help
  std::string text;                      // one line, without the host
};
// `said`: the end of its stderr, else of its stdout.
CommandFailure command_failure(int wait_status, const std::string& said,
                               const std::vector<std::string>& ssh, const std::string& program);

// Runs the job to its end and prints the report. `environment` is for the ssh processes. Returns
// ddprun's exit status.
int run_on_hosts(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
                 ServiceManager manager);

}  // namespace ddprun::launcher
