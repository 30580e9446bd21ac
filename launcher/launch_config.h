// SPDX-License-Identifier: Apache-2.0
// The user's request as a plain struct: the command line's fields with their defaults and units.
// cli.cc fills it; nothing below launcher/ knows a flag.
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

// The verdict of `ddprunctl doctor` from which on a node stays out.
enum class DoctorGate { kOff, kFail, kWarn };

inline constexpr char kNoEvents[] = "off";  // in LaunchConfig::events

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
  // --ssh-keep-alive: a channel on which nothing is heard for so long is cut; 0: never
  std::chrono::milliseconds keep_alive{30'000};

  // This ddprun starts those of the hosts, and runs no worker itself.
  bool is_set() const { return !hosts.empty() || !hostfile.empty(); }
  bool operator==(const HostsOptions&) const = default;
};

// It has what all nodes of the job must have alike, but for two that the launcher finds out. They
// are the rendezvous and the store that there will be.
struct LaunchConfig : membership::JobSettings {
  std::string nproc_per_node = "1";  // a number, auto, gpu or cpu
  bool prewarm = false;              // a spare's workers run before they have ranks

  // The meeting place of the nodes. Empty or unset: see launcher/endpoint_discovery.h.
  bool standalone = false;
  std::string wanted_backend;  // "", "c10d" or "static"
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::map<std::string, std::string> rdzv_conf;
  std::optional<int> node_rank;
  std::string master_addr;
  std::optional<std::uint16_t> master_port;
  std::string token_file;  // nodes prove to each other that they have its content; empty: needn't
  // nullopt: proxy where a token or TLS is given, else direct.
  std::optional<membership::StoreMode> wanted_store;
  security::TlsFiles tls;  // of the connections to the rendezvous; none: without TLS
  std::string local_addr;  // what peers are told to reach this node by
  std::string topology;    // "pod1.rack7": where this node stands

  HostsOptions hosts;            // that this ddprun starts over ssh
  bool standing_agents = false;  // those of the ddprund start the job (launcher/gangs)

  // Time limits.
  std::chrono::milliseconds connect_timeout{0};  // until the rendezvous answers; 0: timeouts.join
  std::chrono::milliseconds static_timeout{0};   // with fixed ranks: timeouts.join; 0: isn't
  std::chrono::milliseconds keep_alive_interval{0};  // of a node's pings; 0: a third of keep_alive
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
  std::string events;     // a file for what happens, kNoEvents, or empty: with the log files
  // The address of this node's GET /metrics; an empty host: all interfaces; nullopt: not served.
  std::optional<Endpoint> metrics;

  // Before this node joins (docs/preflight.md).
  DoctorGate preflight_doctor = DoctorGate::kOff;
  std::string preflight;  // a command for /bin/sh; empty: none
  std::chrono::milliseconds preflight_timeout{60'000};

  agent::OutputOptions output;  // of the workers (docs/output.md)

  // The job is told, and not run (docs/dry-run.md).
  bool dry_run = false;
  bool json = false;  // as one JSON document

  // Imported once on each node before its workers start (docs/warm.md); none: each worker imports
  // for itself.
  std::vector<std::string> preload;
  bool preload_auto = false;  // what the workers had imported by their first step
  std::string preload_cache;  // a folder that keeps auto's list for the next job; empty: none
  std::chrono::milliseconds preload_timeout{60'000};

  // The program.
  bool module = false;     // -m: PROGRAM is a Python module
  bool observes = true;    // --observe: how far a Python program is (docs/observe.md)
  bool no_python = false;  // PROGRAM is executed as it is
  bool run_path = false;   // PROGRAM is a Python script, whatever else is said
  std::string role = "default";
  std::string program;
  std::vector<std::string> program_args;

  // Notes for the user about all this, one line each: values that mean nothing.
  std::vector<std::string> notes;

  // The command line as typed, without argv[0], behind what the environment gave: for the line that
  // an error message shows.
  std::vector<std::string> typed;

  bool operator==(const LaunchConfig&) const = default;
};

// Every problem that the fields have together, each naming the flag to change. Empty: none.
std::vector<std::string> validate(const LaunchConfig& config);

}  // namespace ddprun::launcher
