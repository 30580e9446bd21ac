// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole: as JSON, GET /v1/status, and in numbers, GET /metrics. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics_text.h"
#include "rendezvous/daemon/job_json.h"
#include "rendezvous/daemon/proxied_stores.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// How many there are, and how many there may be; nullopt: no limit is set.
struct Gauge {
  std::uint64_t number = 0;
  std::optional<std::uint64_t> most = std::nullopt;
};

// The role of one among several rendezvous (docs/ha.md).
struct RoleStatus {
  bool leads = false;
  std::string leader;        // HOST:PORT of whom it stands by; empty: not known
  std::string trouble = {};  // why etcd does not answer; empty: it does
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

// Seconds of all jobs by phase as counters, over all times that this process led. A part of a phase
// may turn out at its end to have been another one's (a hang that was noticed late). The shown
// number stays then, until the sum has caught up with it. Pure.
class FleetSeconds {
 public:
  using PhaseSeconds = membership::PhaseSeconds;

  // It begins to lead: what show() is given counts from zero again.
  void begin() { before_ = shown_; }

  // `since`: of what it has led since begin(). `running` has in it what was done again.
  const PhaseSeconds& show(const PhaseSeconds& since) {
    PhaseSeconds now = before_;
    now += since;
    now.running += since.redone;
    for (const auto& [name, phase] : membership::kPhases) {
      shown_.*phase = std::max(shown_.*phase, now.*phase);
    }
    return shown_;
  }
  const PhaseSeconds& shown() const { return shown_; }

 private:
  PhaseSeconds before_, shown_;
};

// The daemon in numbers, for GET /metrics (docs/metrics.md). No series of a job, node or rank: how
// long the page is depends on nothing that is running.

// Since this process began, whether it led or stood by.
struct DaemonCounts {
  std::array<std::uint64_t, 3> upgrades{};  // by HttpSession::Peer: those that have proved it
  std::uint64_t store_connections = 0, pages = 0;
  std::uint64_t jobs_succeeded = 0, jobs_failed = 0;
  std::uint64_t rounds = 0;                                               // that began
  std::array<std::uint64_t, membership::kNumRoundEnds> round_ends{};      // by RoundEnd
  metrics::Histogram rendezvous{{0.1, 0.5, 1, 5, 10, 30, 60, 300, 600}};  // of rounds, in seconds
  FleetSeconds seconds;
};

struct DaemonMetrics {
  DaemonStatus status;
  DaemonCounts counts;
  metrics::ProcessUse process;
  std::map<std::string, std::size_t> jobs;  // by phase; empty: it stands by
  std::size_t waiting_nodes = 0;            // for their job's next round
};

std::string metrics_to_text(const DaemonMetrics& all, metrics::Format format);

}  // namespace ddprun::rendezvous
