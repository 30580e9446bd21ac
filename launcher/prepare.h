// SPDX-License-Identifier: Apache-2.0
// From what the user asked for to what is to be done: every look-up that needs no network.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/isolation/isolation_plan.h"
#include "agent/preflight/node_facts.h"
#include "common/environment.h"
#include "common/secret.h"
#include "launcher/cli.h"
#include "launcher/endpoint_discovery.h"
#include "launcher/hosts/under_channel.h"
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
  security::TlsContext tls;             // as a client; null: without TLS
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

// Where files go that may stay for others to read: $TMPDIR, made absolute, else /tmp. Relative only
// where the current directory is not known.
std::string temporary_directory(const Environment& environment);

// Where sockets go, for as long as a round lives: $TMPDIR, else memory (/dev/shm), where making and
// removing one takes a tenth of the time; /tmp where that can't be written.
std::string runtime_directory(const Environment& environment);

// ddprunctl, for --preflight-doctor.
std::string doctor_program();

// Another node may take this one's place in the job.
bool is_replaceable(const LaunchConfig& config);

// `argv0` as main() got it.
Preparation prepare(CommandLine line, Environment environment, const std::string& argv0);

}  // namespace ddprun::launcher
