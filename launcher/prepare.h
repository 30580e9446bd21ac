// SPDX-License-Identifier: Apache-2.0
// Makes a job's plan from the user's options, with all look-ups that need no network. Then runs the
// plan.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/isolation/isolation_plan.h"
#include "agent/output/output_options.h"
#include "agent/preflight/node_checks.h"
#include "agent/worker_environment.h"
#include "common/environment.h"
#include "common/secret.h"
#include "common/service_manager.h"
#include "launcher/cli.h"
#include "launcher/endpoint_discovery.h"
#include "launcher/hosts/channel_agent.h"
#include "launcher/launch_config.h"
#include "launcher/placement.h"
#include "launcher/program_lookup.h"

namespace ddprun::launcher {

struct JobPlan {
  std::optional<UnderChannel> channel;  // set if a launcher on another host started this ddprun
  LaunchConfig config;
  Environment environment;
  RendezvousPlan rendezvous;
  std::shared_ptr<const Secret> token;  // also owned by the agent and the rendezvous; null: none
  std::string step_token;               // `token`'s file, if the step's nodes made it; else empty
  security::TlsContext tls;             // as a client; null: without TLS
  Program program;
  int num_workers = 1;
  agent::NodeNeeds needs;  // for the preflight
  Placement placement;
  agent::IsolationPlan isolation;  // of this node's workers
  std::string topology;            // with several nodes; empty: not known
  std::string proxy_cause;         // the option that makes the store proxied; empty: none
};

struct Preparation {
  JobPlan plan;
  std::vector<std::string> problems;  // print each and exit 2; empty: none
  std::vector<std::string> unfit;     // print each, exit 75: another node may be fit; empty: none
  std::vector<std::string> notes;     // to print if there are no problems
};

// Returns the directory for files that may stay for others to read: $TMPDIR, made absolute, else
// /tmp. It is relative only if the current directory isn't known.
std::string temporary_directory(const Environment& environment);

// Returns the directory for sockets, which exist as long as a round: $TMPDIR, else memory
// (/dev/shm), else /tmp. In memory they are made and removed ten times as fast.
std::string runtime_directory(const Environment& environment);

// Whether another node may take this one's place in the job.
bool is_replaceable(const LaunchConfig& config);

// Makes the plan. `argv0` is as main() got it.
Preparation prepare(CommandLine line, Environment environment, const std::string& argv0);

agent::WorkerCommand worker_command(const JobPlan& plan);

// Reads the width of ddprun's terminal, too.
agent::WorkerEnvironmentOptions worker_environment_options(const JobPlan& plan);

struct OutputSetup {
  std::string problem;  // why there can be no log files; one line, exit 2; empty: none
  std::string note;     // to be printed once; empty: nothing to tell
};

enum class LogDirectory {
  kMade,         // made with its parents, and tested with a small file
  kOnlyChecked,  // for --dry-run
  kNotLookedAt,  // for --dry-run of another host
};

// Placeholder for a name that is drawn when a job starts.
inline constexpr char kDrawnAtStart[] = "<random>";

// Fills in what depends on the environment and on the name by which ddprun was called. If files are
// wanted, makes (or only checks) the log directory, so that an unwritable one is found now.
// `log_dir_given` tells how the directory was named, for messages. If it is empty, redirected
// streams go to a new one below `temporary_directory`.
OutputSetup set_up_output(agent::OutputOptions& options, const Environment& environment,
                          const std::string& argv0, const std::string& temporary_directory,
                          const std::string& log_dir_given, LogDirectory directory);

// Takes the endpoint's port if this node serves, runs the job to its end and prints the report.
// Returns ddprun's exit status. Throws as claim_endpoint().
int run_job(JobPlan plan, ServiceManager manager);

}  // namespace ddprun::launcher
