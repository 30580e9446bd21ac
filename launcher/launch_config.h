// SPDX-License-Identifier: Apache-2.0
// The user's request as a plain struct: all options with their defaults and units. cli.cc fills it;
// no code below launcher/ knows flags.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/binding/binding_plan.h"
#include "agent/hang/rank_sample.h"
#include "agent/isolation/isolation_plan.h"
#include "agent/output/output_options.h"
#include "common/endpoint.h"
#include "launcher/preemption_options.h"
#include "rendezvous/messages/messages.h"
#include "rendezvous/security/tls.h"

namespace ddprun::launcher {

// The mildest verdict of `ddprunctl doctor` that keeps a node out of the job.
enum class DoctorGate { kOff, kFail, kWarn };

inline constexpr char kNoEvents[] = "off";  // a value of LaunchConfig::events

// --hosts and what belongs to it (docs/ssh.md).
struct HostsOptions {
  std::string hosts;                          // --hosts
  std::string hostfile;                       // --hostfile
  std::string include;                        // --include-hosts
  std::string exclude;                        // --exclude-hosts
  std::string ssh = "ssh";                    // --ssh: a command line, see split_words()
  std::string remote_ddprun;                  // --remote-ddprun; empty: where this one is
  std::vector<std::string> env;               // --env, as often as it was given
  int fanout = 64;                            // --ssh-fanout
  std::chrono::milliseconds timeout{60'000};  // --ssh-timeout
  // --ssh-keep-alive: a channel that is silent for so long is cut; 0: never
  std::chrono::milliseconds keep_alive{30'000};

  // Whether this ddprun starts others on the hosts, and runs no worker itself.
  bool is_set() const { return !hosts.empty() || !hostfile.empty(); }
  bool operator==(const HostsOptions&) const = default;
};

// Its base has the settings that all nodes of the job must have alike. Two of these are found out
// later: rdzv_backend and store.
struct LaunchConfig : membership::JobSettings {
  std::string nproc_per_node = "1";  // a number, auto, gpu or cpu
  bool prewarm = false;              // starts a spare's workers before they have ranks

  // The place where the nodes meet. Empty or unset: see launcher/endpoint_discovery.h.
  bool standalone = false;
  std::string wanted_backend;  // "", "c10d" or "static"
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::map<std::string, std::string> rdzv_conf;
  std::optional<int> node_rank;
  std::string master_addr;
  std::optional<std::uint16_t> master_port;
  std::string token_file;  // its content is the secret that nodes share; empty: none
  // nullopt: proxy where a token or TLS is given, else direct.
  std::optional<membership::StoreMode> wanted_store;
  security::TlsFiles tls;  // for connections to the rendezvous; none: without TLS
  std::string local_addr;  // the address at which peers are told to reach this node
  std::string topology;    // "pod1.rack7": this node's place

  HostsOptions hosts;            // hosts on which this ddprun starts others over ssh
  bool standing_agents = false;  // a ddprund's agents start the job (launcher/gangs)

  // Time limits.
  std::chrono::milliseconds connect_timeout{0};  // until the rendezvous answers; 0: timeouts.join
  std::chrono::milliseconds static_timeout{0};   // timeouts.join with fixed ranks; 0: not set
  std::chrono::milliseconds keep_alive_interval{0};  // of pings; 0: a third of keep_alive
  membership::JobTimeouts timeouts;

  // Ranks that make no progress (docs/hang-detection.md).
  agent::HangLimits hang_limits;  // unset ones are learnt

  // Which CPUs and GPU each worker has (docs/binding.md).
  agent::BindingMode binding = agent::BindingMode::kNone;
  bool show_binding = false;
  bool virtual_local_rank = false;

  agent::WorkerLimits worker_limits;  // docs/isolation.md

  PreemptionOptions preemption;
  HandledSignals signals_to_handle;
  std::string event_log;  // "", "console" or "file=PATH"
  std::string report;     // a file for the job's end as JSON; "-": stdout; empty: none
  std::string events;     // a file for events, kNoEvents, or empty: with the log files
  // The address of this node's GET /metrics. An empty host: all interfaces; nullopt: not served.
  std::optional<Endpoint> metrics;

  // Checks before this node joins (docs/preflight.md).
  DoctorGate preflight_doctor = DoctorGate::kOff;
  std::string preflight;  // a command for /bin/sh; empty: none
  std::chrono::milliseconds preflight_timeout{60'000};

  agent::OutputOptions output;  // of the workers (docs/output.md)

  // Only describes the job (docs/dry-run.md).
  bool dry_run = false;
  bool json = false;  // as one JSON document

  // Modules imported once on each node before its workers start (docs/warm.md). None: each worker
  // imports for itself.
  std::vector<std::string> preload;
  bool preload_auto = false;  // also modules that workers had imported by their first step
  std::string preload_cache;  // a folder that keeps auto's list for the next job; empty: none
  std::chrono::milliseconds preload_timeout{60'000};

  // The program.
  bool module = false;     // -m: PROGRAM is a Python module
  bool observes = true;    // --observe: finds out how far a Python program is (docs/observe.md)
  bool no_python = false;  // PROGRAM is executed as it is
  bool run_path = false;   // PROGRAM is a Python script, whatever other options say
  std::string role = "default";
  std::string program;
  std::vector<std::string> program_args;

  // Notes for the user, one line each: values that have no effect.
  std::vector<std::string> notes;

  // The command line as typed, without argv[0], after the environment's values as flags. An error
  // message shows it.
  std::vector<std::string> typed;

  bool operator==(const LaunchConfig&) const = default;
};

// Returns each problem that the fields have together, with the flag to change. Empty: none.
std::vector<std::string> validate(const LaunchConfig& config);

}  // namespace ddprun::launcher
