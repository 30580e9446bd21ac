// SPDX-License-Identifier: Apache-2.0
// Makes the plan of a job from the user's wishes, by every look-up that needs no network. Then runs
// the plan.
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
  std::optional<UnderChannel> channel;  // of a launcher elsewhere that started this one
  LaunchConfig config;
  Environment environment;
  RendezvousPlan rendezvous;
  std::shared_ptr<const Secret> token;  // second owners: the agent, the rendezvous; null: none
  std::string
      step_token;  // the file that `token` is in, where the step's nodes made it; else empty
  security::TlsContext tls;  // as a client; null: without TLS
  Program program;
  int num_workers = 1;
  agent::NodeNeeds needs;  // for the preflight
  Placement placement;
  agent::IsolationPlan isolation;  // of this node's workers
  std::string topology;            // of a job of several nodes; empty: not known
  std::string proxy_cause;         // the option because of which the store is proxied; empty: none
};

struct Preparation {
  JobPlan plan;
  std::vector<std::string> problems;  // not empty: print each and exit 2
  std::vector<std::string> unfit;     // likewise, and exit 75: another node may do
  std::vector<std::string> notes;     // to print, when there is no problem
};

// The directory for files that may stay for others to read: $TMPDIR, made absolute, else /tmp.
// Relative only if the current directory is not known.
std::string temporary_directory(const Environment& environment);

// The directory for sockets, which live as long as a round: $TMPDIR, else memory (/dev/shm), else
// /tmp. Making and removing one in memory takes a tenth of the time.
std::string runtime_directory(const Environment& environment);

// Another node may take this one's place in the job.
bool is_replaceable(const LaunchConfig& config);

// `argv0` as main() got it.
Preparation prepare(CommandLine line, Environment environment, const std::string& argv0);

agent::WorkerCommand worker_command(const JobPlan& plan);

// Asks for the width of ddprun's terminal.
agent::WorkerEnvironmentOptions worker_environment_options(const JobPlan& plan);

struct OutputSetup {
  std::string problem;  // not empty: there can be no log files; one line, exit 2
  std::string note;     // not empty: tell the user once
};

enum class LogDirectory {
  kMade,         // with its parents, and a small file in it for a moment
  kOnlyChecked,  // --dry-run
  kNotLookedAt,  // likewise, of another host
};

// Stands for a name that is drawn when a job starts.
inline constexpr char kDrawnAtStart[] = "<random>";

// Fills in what depends on the environment and on the name that ddprun was called by. If files are
// asked for, makes (or only checks) the log directory, so that one that can't be written is known
// now. If no directory was named (`log_dir_given` is empty, else how, for messages), redirected
// streams go to a new one below `temporary_directory`.
OutputSetup set_up_output(agent::OutputOptions& options, const Environment& environment,
                          const std::string& argv0, const std::string& temporary_directory,
                          const std::string& log_dir_given, LogDirectory directory);

// Takes the endpoint's port where this node serves it, runs the job to its end and prints the
// report. Returns ddprun's exit status. Throws as claim_endpoint.
int run_job(JobPlan plan, ServiceManager manager);

}  // namespace ddprun::launcher
