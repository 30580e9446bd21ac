// SPDX-License-Identifier: Apache-2.0
// The status of the daemon as JSON (GET /v1/status) and as metrics (GET /metrics). Pure.
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

// A number and its limit; nullopt: there is no limit.
struct Gauge {
  std::uint64_t number = 0;
  std::optional<std::uint64_t> most = std::nullopt;
};

// The role of a ddprund among several (docs/ha.md).
struct RoleStatus {
  bool leads = false;
  std::string leader;        // on a standby: the leader's HOST:PORT; empty: not known
  std::string trouble = {};  // why etcd does not answer; empty: it does
};

struct DaemonStatus {
  int pid = 0;
  std::chrono::milliseconds uptime{0};
  std::chrono::milliseconds time{0};   // this host's clock: Unix time
  bool embedded = false;               // it runs in a ddprun
  std::optional<RoleStatus> role;      // nullopt: it is the only one
  std::vector<std::string> addresses;  // on which it listens
  bool token = false, tls = false;
  bool watch_output = true;  // status pages show ranks' output
  Gauge live_jobs, finished_jobs;
  std::chrono::milliseconds keep_finished{0};
  Gauge agents;                           // those that have joined and are connected
  Gauge newcomers;                        // connections that aren't identified yet; of these:
  Gauge silent, requests, proofs, joins;  // without a byte, request, proof, Join
  ProxiedStores::Usage proxied_stores;
  StoreLimits limits;  // for proxied_stores
  RoundStores::Usage port_stores;
  std::optional<KeepingStatus> keeping;  // nullopt: no journal
  std::string journal_path;
};

// {"version":"0.1.0","pid":4711,…,"handshakes":{"under_way":3,"max_under_way":4096,…},…}: the limit
// of a number is beside it, under "max_" and its name.
std::string status_to_json(const DaemonStatus& status);

// The seconds of all jobs by phase, as counters, over all times that this process led. At a phase's
// end a part of it may move to another phase (a hang that was noticed late). Then the shown number
// stays until the sum has caught up with it. Pure.
class FleetSeconds {
 public:
  using PhaseSeconds = membership::PhaseSeconds;

  // Called when this process begins to lead: show()'s argument counts from zero again.
  void begin() { before_ = shown_; }

  // `since` has the seconds since begin(). The result's `running` includes `redone`.
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

// The daemon's numbers, for GET /metrics (docs/metrics.md). There are no series per job, node or
// rank, so the page's length doesn't depend on the jobs.

// Counts since this process began, as leader and as standby.
struct DaemonCounts {
  std::array<std::uint64_t, 3> upgrades{};  // by HttpSession::Peer; identified peers only
  std::uint64_t store_connections = 0, pages = 0;
  std::uint64_t jobs_succeeded = 0, jobs_failed = 0;
  std::uint64_t rounds = 0;                                               // begun rounds
  std::array<std::uint64_t, membership::kNumRoundEnds> round_ends{};      // index: RoundEnd
  metrics::Histogram rendezvous{{0.1, 0.5, 1, 5, 10, 30, 60, 300, 600}};  // of rounds, in seconds
  FleetSeconds seconds;
};

struct DaemonMetrics {
  DaemonStatus status;
  DaemonCounts counts;
  metrics::ProcessUse process;
  std::map<std::string, std::size_t> jobs;  // by phase; empty on a standby
  std::size_t waiting_nodes = 0;            // for their job's next round
};

std::string metrics_to_text(const DaemonMetrics& all, metrics::Format format);

}  // namespace ddprun::rendezvous
