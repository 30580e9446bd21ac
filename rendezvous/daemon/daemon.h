// SPDX-License-Identifier: Apache-2.0
// The rendezvous on one TCP port. It serves c10d store clients, agents (WebSocket /v1/agent),
// standing agents (WebSocket /v1/node), status pages (/, WebSocket /v1/watch) and HTTP (/healthz,
// /readyz, /v1/jobs, …). A connection's first byte tells them apart. It runs in ddprund or in a
// ddprun. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/secret.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/daemon/shared_page.h"
#include "rendezvous/daemon/tails.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/security/tls.h"
#include "rendezvous/store_server/store_server.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

struct PortSecurity {
  // Agents must prove that they have it, and there is no store on the port. Null: all agents are
  // taken.
  std::shared_ptr<const Secret> token;
  // With `token`: a bearer token, as Prometheus sends it, for reading three pages. Null: none.
  std::shared_ptr<const Secret> scrape_token;
  security::TlsContext tls;  // null: off; else a client without TLS gets only probes
};

struct DaemonOptions : PortSecurity {
  // It runs in a ddprun, so agents are told that it won't come back once it has ended. Without
  // token and TLS, other users over loopback (but root) get only probes: no store, no page, no job.
  bool embedded = false;
  std::string embedded_for;                              // that ddprun's job id; empty: none
  bool stands_by = false;                                // one of several, a standby until lead()
  bool has_gangs = false;                                // a queue for standing agents (gang_hub.h)
  std::chrono::milliseconds keep_finished{0};            // GET /v1/jobs shows ended jobs so long
  std::chrono::milliseconds reconnect_grace{150};        // from connection lost to agent lost
  std::chrono::milliseconds handshake_timeout{10'000};   // from accept to request, upgrade to Join
  std::chrono::milliseconds newcomer_timeout{20'000};    // from accept to Join, or to the page sent
  std::size_t max_message_bytes = std::size_t{1} << 20;  // of a control message
  // The limit of connections that have not said who they are. PendingHandshakes and TlsAdmission
  // (pending_handshakes.h) have those of one address and of TLS sessions.
  std::size_t max_handshakes = 4096;
  std::chrono::milliseconds tls_turn{2'000};  // TlsAdmission::Options::turn
  WaitingPages::Limits waiting_pages;         // further pages are refused
  WatcherLimits watchers;                     // of status pages
  bool watch_output = true;                   // they can see ranks' output
  // Called before the job's nodes are told of its end. May be empty.
  std::function<void(const std::string& run_id)> job_over{};
  store::StoreServerOptions store;          // for the plain store and static rounds
  std::size_t max_jobs_per_client = 4'096;  // per user or address (MachineOptions)
  // The limits of stores behind proxies and on the port. `limits.connections` is the limit of
  // agents, too.
  StoreLimits job_limits = default_job_limits(), limits = default_total_limits();
};

// A journal, in which jobs outlive a daemon, and its content. Only ddprund has one: a ddprun keeps
// no jobs, and doesn't load SQLite.
struct KeptJobs {
  std::unique_ptr<journal::BatchWriter> writer;
  journal::Content content{};
  // Set for a shared journal, where other ddprunds may take over; called once, on the I/O thread.
  std::function<void(const std::string& why)> deposed{};
};

// How long Daemon::when_idle() waits for the jobs.
enum class Serve {
  kUntilTimeout,
  kUntilJobsEnd,  // only their own deadlines are the limit
};

class Daemon {
 public:
  // Serves on `listeners` (see bind_endpoint) until destroyed. The jobs of `kept` go on; nullopt:
  // no jobs are kept. Callers make `kept` before the listeners, so that every client is answered at
  // once.
  Daemon(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
         std::optional<KeptJobs> kept = std::nullopt);
  ~Daemon();  // closes every connection; agents see a lost rendezvous

  std::uint16_t port() const;

  // Returns whether a connected `socket` of this process leads to this port, which then takes it
  // without TLS.
  bool await_own(int socket);

  // Sets the security of later connections. A member that was null must stay null, and one that was
  // set must stay set.
  void set_security(PortSecurity security);

  // For a daemon with DaemonOptions::stands_by, one of several of which one leads (docs/ha.md). A
  // standby answers agents, and all pages but probes, /metrics and /v1/status, with 503 and
  // kStandbyHeader. It has no store. lead() goes on with the jobs of `kept`. stand_by() ends every
  // connection of agents, and forgets the jobs. `leader` is the present leader's HOST:PORT; empty:
  // not known. stand_by() is called again on a standby when another one leads.
  void lead(KeptJobs kept);
  void stand_by(const std::string& leader);
  // Sets, for /readyz and /v1/status, why etcd does not answer; empty: it does.
  void note_etcd(const std::string& trouble);
  bool leads() const;

  // Begins no new job from now on. Agents of new jobs, and of a job that waits for its first round,
  // are told to try again. Calls `done` (from the I/O context) as soon as every job has ended and
  // every agent has acknowledged that. If the last job failed, it then also waits until no worker
  // uses a store. Each of the two waits ends after `timeout`, the first one with
  // Serve::kUntilTimeout only. A ddprun that embeds the daemon must not exit before.
  void when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done);

  // Returns the ids of the jobs that have begun and not ended yet.
  std::vector<std::string> live_jobs() const;

  // Returns why decisions are not kept now; empty: they are, or there is no journal.
  std::string journal_trouble() const;

  // Returns the content of GET /v1/status.
  std::string status_json() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns listening sockets for every local address of `endpoint`. Port 0 means any free port, the
// same for all. The host "" means loopback. An address that the system refuses is left out, with a
// log line, if another one can be served; else throws Error(kSystem). Throws Error(kUnavailable) if
// the host can't be resolved, has no local address, or the port is in use. The text names the
// port's holder ("in use by python3, pid 4711") if /proc shows it. For a name it waits for the
// resolver without a limit.
std::vector<UniqueFd> bind_endpoint(const Endpoint& endpoint);

// Does the same as bind_endpoint(), but with known addresses: no look-up, no wait.
std::vector<UniqueFd> bind_addresses(const Endpoint& endpoint,
                                     const std::vector<SocketAddress>& addresses);

// Listens on all interfaces, IPv4 and (if the kernel has it) IPv6. Throws as bind_endpoint() does.
std::vector<UniqueFd> bind_everywhere(std::uint16_t port);

// Returns a mark of the job id, which a rendezvous in a ddprun shows to all clients. Different ids
// have different marks.
std::string job_mark(const std::string& job_id);

// Asks `addresses` for GET /healthz until one answers as a rendezvous, for `timeout` at most.
// Returns the job's mark if a ddprun answers. Empty: it is a ddprund, or it has a token. nullopt:
// none answers. Blocking.
std::optional<std::string> rendezvous_at(const std::vector<SocketAddress>& addresses,
                                         std::chrono::milliseconds timeout);

}  // namespace ddprun::rendezvous
