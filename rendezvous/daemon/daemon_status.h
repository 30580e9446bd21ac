// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole as JSON, for GET /v1/status. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/daemon/jobs_json.h"
#include "rendezvous/daemon/proxied_stores.h"
#include "rendezvous/daemon/round_stores.h"

namespace ddprun::rendezvous {

// How many there are, and how many there may be; nullopt: no limit is set.
struct Gauge {
  std::uint64_t number = 0;
  std::optional<std::uint64_t> most = std::nullopt;
};

// Of one of several rendezvous (docs/ha.md).
struct RoleStatus {
  bool leads = false;
  std::string leader;  // HOST:PORT of whom it stands by; empty: not known
};

struct DaemonStatus {
  int pid = 0;
  std::chrono::milliseconds uptime{0};
  std::chrono::milliseconds time{0};   // this host's clock, since 1970
  bool embedded = false;               // in a ddprun
  std::optional<RoleStatus> role;      // nullopt: there are no others
  std::vector<std::string> addresses;  // that it listens on
  bool token = false, tls = false;
  bool watch_output = true;  // who watches is told what ranks print
  Gauge live_jobs, finished_jobs;
  std::chrono::milliseconds keep_finished{0};
  Gauge agents;     // that have joined and are connected
  Gauge newcomers;  // connections that have not said or proved who they are; of these:
  Gauge silent, requests, proofs, joins;  // nothing, no whole request, no proof, no Join came yet
  ProxiedStores::Usage proxied_stores;
  StoreLimits limits;  // of proxied_stores
  RoundStores::Usage port_stores;
  std::optional<KeepingStatus> keeping;  // nullopt: nothing is kept
  std::string journal_path;
};

// {"version":"0.1.0","pid":4711,…,"handshakes":{"under_way":3,"max_under_way":4096,…},…}: what
// has a limit has it beside itself, as "max_" and its own name.
std::string status_to_json(const DaemonStatus& status);

}  // namespace ddprun::rendezvous
