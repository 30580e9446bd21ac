// SPDX-License-Identifier: Apache-2.0
// The rendezvous on one TCP port. It serves c10d store clients, agents (WebSocket /v1/agent),
// standing agents (WebSocket /v1/node), status pages (/, WebSocket /v1/watch) and HTTP (/healthz,
// /readyz, /v1/jobs, …). A connection's first byte tells them apart. In ddprun, or in ddprund. io
// thread only.
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
#include "rendezvous/daemon/kept_jobs.h"
#include "rendezvous/daemon/round_stores.h"
#include "rendezvous/daemon/shared_page.h"
#include "rendezvous/daemon/tails.h"
#include "rendezvous/security/tls.h"
#include "rendezvous/store_server/store_server.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

// As DaemonOptions have them.
struct PortSecurity {
  std::shared_ptr<const Secret> token;
  std::shared_ptr<const Secret> scrape_token{};
  security::TlsContext tls;
};

struct DaemonOptions {
  // Agents are told that it won't come back once gone. Without a token and TLS, other users than
  // this one and root get probes alone over loopback: no store, no page, no job.
  bool embedded = false;
  std::string embedded_for;  // the id of the job whose ddprun this is in; empty: none
  bool stands_by = false;  // at first: there are others, and lead() says when it is this one's turn
  bool has_gangs = false;  // a queue for standing agents (gang_hub.h)
  std::chrono::milliseconds keep_finished{0};  // how long GET /v1/jobs tells of a job that is over
  std::chrono::milliseconds reconnect_grace{150};       // connection lost → agent lost
  std::chrono::milliseconds handshake_timeout{10'000};  // accept → request read; upgrade → Join
  std::chrono::milliseconds newcomer_timeout{20'000};   // accept → Join, or the page is sent
  std::size_t max_message_bytes = std::size_t{1} << 20;  // of a control message
  // Connections that have not said who they are, and those of one address (pending_handshakes.h).
  std::size_t max_handshakes = 4096;
  std::size_t max_handshakes_per_address = 2048;
  // TLS sessions among them, and those of one address; others wait for their turn (TlsAdmission).
  std::size_t max_tls_handshakes = 128;
  std::size_t max_tls_handshakes_per_address = 32;
  std::chrono::milliseconds tls_turn{2'000};
  WaitingPages::Limits waiting_pages;  // for the journal; those beyond are refused
  WatcherLimits watchers;              // of status pages
  bool watch_output = true;            // they are told what ranks print
  // Agents prove that they have it, and there is no store on the port. Null: all are taken.
  std::shared_ptr<const Secret> token;
  // With `token`: a bearer token, as Prometheus shows it, that reads three pages. Null: none does.
  std::shared_ptr<const Secret> scrape_token{};
  security::TlsContext tls;  // null: off. Else only probes are answered without it
  // Before the nodes of the job are told of its end. May be empty.
  std::function<void(const std::string& run_id)> job_over{};
  store::StoreServerOptions store;          // of the plain store and of static rounds
  std::size_t max_jobs_per_client = 4'096;  // of one user or address (MachineOptions)
  // For stores behind proxies and on the port. `limits.connections` is the limit of agents, too.
  StoreLimits job_limits = default_job_limits(), limits = default_total_limits();
};

// How long Daemon::when_idle waits for the jobs.
enum class Serve {
  kUntilTimeout,
  kUntilJobsEnd,  // their own deadlines are the limit
};

class Daemon {
 public:
  // Serves on `listeners` (see bind_endpoint) until destroyed. The jobs of `kept` go on; nullopt:
  // none are kept. They are read before there are listeners: who connects is answered at once.
  Daemon(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
         std::optional<KeptJobs> kept = std::nullopt);
  ~Daemon();  // closes every connection; agents see a lost rendezvous
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  std::uint16_t port() const;

  // True: a connected `socket` of this process leads to this port, which takes it without TLS.
  bool await_own(int socket);

  // For connections from now on. A member that was null stays null; one that was set stays set.
  void set_security(PortSecurity security);

  // One of several, of which one leads (docs/ha.md). A standby answers agents, and all pages but
  // probes, /metrics and /v1/status, with 503 and kStandbyHeader; it has no store. `lead()` goes on
  // with the jobs of `kept`. `stand_by()` ends every connection of agents, and forgets the jobs.
  // The present leader's HOST:PORT is `leader`; empty: not known. Again while it stands by: another
  // one leads. Both are for a daemon with DaemonOptions::stands_by.
  void lead(KeptJobs kept);
  void stand_by(const std::string& leader);
  // For /readyz and /v1/status: why etcd does not answer; empty: it does.
  void note_etcd(const std::string& trouble);
  bool leads() const;

  // Begins no new job from now on: its agents, and those of a job that waits for its first round,
  // are told to try again. Calls `done` (from the io context) as soon as every job has ended and
  // every agent has confirmed it. If it ended badly, no worker may use a static round's store any
  // more either. Each of the two waits ends after `timeout`, the first with Serve::kUntilTimeout
  // only. For the node whose ddprun embeds the daemon: it must not exit before.
  void when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done);

  // Ids of the jobs here that have begun and not ended yet.
  std::vector<std::string> live_jobs() const;

  // Why what is decided is not kept now; empty: it is, or need not be.
  std::string journal_trouble() const;

  // The content of GET /v1/jobs, and of GET /v1/status.
  std::string jobs_json() const;
  std::string status_json() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Listening sockets for every address of `endpoint` that is local; port 0 = any, the same for all.
// "" as host: loopback. An address that the system refuses is left out, with a log line, where
// another one can be served; else throws Error(kSystem). Throws Error(kUnavailable): not
// resolvable, no local address, or in use, then with the holder ("in use by python3, pid 4711")
// where /proc shows it. A name waits for the resolver as long as that takes; numeric hosts don't.
std::vector<UniqueFd> bind_endpoint(const Endpoint& endpoint);

// As bind_endpoint(), with the endpoint's addresses known: no look-up, no wait.
std::vector<UniqueFd> bind_addresses(const Endpoint& endpoint,
                                     const std::vector<SocketAddress>& addresses);

// On all interfaces, IPv4 and (where the kernel has it) IPv6. Throws as bind_endpoint.
std::vector<UniqueFd> bind_everywhere(std::uint16_t port);

// A rendezvous in a ddprun shows everybody this mark of its job. Only the same id has the same one.
std::string job_mark(const std::string& job_id);

// The mark of the job whose ddprun answers GET /healthz as a rendezvous at one of `addresses`
// before the deadline. Empty: it is a ddprund, or has a token. nullopt: none answers. Blocking.
std::optional<std::string> rendezvous_at(const std::vector<SocketAddress>& addresses,
                                         std::chrono::milliseconds timeout);

}  // namespace ddprun::rendezvous
