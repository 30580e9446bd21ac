// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/daemon_status.h"

#include <boost/json/array.hpp>
#include <utility>

#include "common/json.h"
#include "common/text.h"
#include "rendezvous/daemon/http_session.h"

namespace ddprun::rendezvous {

namespace json = boost::json;

namespace {

double seconds_of(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

void put(json::object& object, const char* name, const Gauge& gauge) {
  object[name] = gauge.number;
  if (gauge.most) object[concat("max_", name)] = *gauge.most;
}

json::object usage_object(const store::StoreServerStats& stats) {
  return {{"connections", stats.num_connections},
          {"keys", stats.num_keys},
          {"bytes", stats.content_bytes},
          {"requests", stats.num_requests},
          {"slow_readers", stats.num_slow_readers}};
}

json::object stores_object(const DaemonStatus& status) {
  json::object proxied;
  const ProxiedStores::Usage& used = status.proxied_stores;
  proxied["number"] = used.stores;
  put(proxied, "keys", {used.keys, status.limits.keys});
  put(proxied, "bytes", {used.bytes, status.limits.bytes});
  put(proxied, "connections", {used.connections, status.limits.connections});
  json::object rounds = usage_object(status.port_stores.rounds);
  rounds["number"] = status.port_stores.num_rounds;
  return {{"proxied", std::move(proxied)},
          {"plain", usage_object(status.port_stores.plain)},
          {"static_rounds", std::move(rounds)}};
}

using metrics::TextWriter;
using metrics::Type;

void write_jobs(TextWriter& out, const DaemonMetrics& all) {
  out.family("ddprun_jobs", Type::kGauge, "Jobs that are not over, by phase.");
  for (const auto& [phase, number] : all.jobs) {
    out.sample({{"phase", phase}}, std::uint64_t{number});
  }
  out.family("ddprun_jobs_ended_total", Type::kCounter, "Jobs that came to their end here.");
  out.sample({{"result", "success"}}, all.counts.jobs_succeeded);
  out.sample({{"result", "failure"}}, all.counts.jobs_failed);
}

void write_rounds(TextWriter& out, const DaemonMetrics& all) {
  out.single("ddprun_rendezvous_rounds_total", Type::kCounter, "Rounds that began, of all jobs.",
             all.counts.rounds);
  out.family("ddprun_rendezvous_round_ends_total", Type::kCounter,
             "Rounds that ended, by what ended them.");
  for (std::size_t i = 0; i < membership::kNumRoundEnds; ++i) {
    out.sample({{"cause", membership::kRoundEndNames[i]}}, all.counts.round_ends[i]);
  }
  out.histogram("ddprun_rendezvous_duration_seconds",
                "How long a round's nodes were waited for: from the job's begin, or from the end "
                "of the last round's workers.",
                all.counts.rendezvous);
  out.single("ddprun_rendezvous_waiting_nodes", Type::kGauge,
             "Nodes that wait for their job's next round.", std::uint64_t{all.waiting_nodes});
}

void write_seconds(TextWriter& out, const membership::PhaseSeconds& seconds) {
  out.family("ddprun_job_seconds_total", Type::kCounter,
             "What all jobs spent their time in; each second of a job counts once. Phase running "
             "has ddprun_job_redone_seconds_total in it.");
  for (const auto& [name, phase] : membership::kPhases) {
    if (phase != &membership::PhaseSeconds::redone) out.sample({{"phase", name}}, seconds.*phase);
  }
  out.single("ddprun_job_redone_seconds_total", Type::kCounter,
             "Part of phase running: what steps cost that a later round did again.",
             seconds.redone);
}

void write_connections(TextWriter& out, const DaemonMetrics& all) {
  const DaemonStatus& status = all.status;
  out.single("ddprun_agents", Type::kGauge, "Agents that have joined a job and are connected.",
             status.agents.number);
  out.family("ddprun_handshakes", Type::kGauge,
             "Connections that have not said or proved who they are, by what is awaited.");
  out.sample({{"awaits", "first_byte"}}, status.silent.number);
  out.sample({{"awaits", "request"}}, status.requests.number);
  out.sample({{"awaits", "proof"}}, status.proofs.number);
  out.sample({{"awaits", "join"}}, status.joins.number);
  const auto num_upgrades = [&](HttpSession::Peer peer) {
    return all.counts.upgrades[static_cast<std::size_t>(peer)];
  };
  out.family("ddprun_connections_total", Type::kCounter,
             "Connections that were taken, by what they were for.");
  out.sample({{"kind", "agent"}}, num_upgrades(HttpSession::Peer::kAgent));
  out.sample({{"kind", "standing_agent"}}, num_upgrades(HttpSession::Peer::kNode));
  out.sample({{"kind", "watcher"}}, num_upgrades(HttpSession::Peer::kWatcher));
  out.sample({{"kind", "page"}}, all.counts.pages);
  out.sample({{"kind", "store"}}, all.counts.store_connections);
}

void write_stores(TextWriter& out, const DaemonStatus& status) {
  const store::StoreServerStats &plain = status.port_stores.plain,
                                &rounds = status.port_stores.rounds;
  const ProxiedStores::Usage& proxied = status.proxied_stores;
  const auto of_each = [&out](const char* name, const char* help, std::uint64_t of_plain,
                              std::uint64_t of_rounds, std::uint64_t of_proxied) {
    out.family(name, Type::kGauge, help);
    out.sample({{"store", "plain"}}, of_plain);
    out.sample({{"store", "static_round"}}, of_rounds);
    out.sample({{"store", "proxied"}}, of_proxied);
  };
  of_each("ddprun_store_keys", "Keys in stores.", plain.num_keys, rounds.num_keys, proxied.keys);
  of_each("ddprun_store_content_bytes", "Keys and values in stores.", plain.content_bytes,
          rounds.content_bytes, proxied.bytes);
  of_each("ddprun_store_connections", "Open connections of stores' clients.", plain.num_connections,
          rounds.num_connections, proxied.connections);
  out.family("ddprun_store_requests_total", Type::kCounter,
             "Requests to stores on the daemon's port.");
  out.sample({{"store", "plain"}}, plain.num_requests);
  out.sample({{"store", "static_round"}}, rounds.num_requests + status.port_stores.past_requests);
}

}  // namespace

std::string status_to_json(const DaemonStatus& status) {
  json::object all;
  all["version"] = DDPRUN_VERSION;
  all["pid"] = status.pid;
  all["uptime_seconds"] = seconds_of(status.uptime);
  all["time_seconds"] = seconds_of(status.time);
  all["embedded"] = status.embedded;
  all["role"] = nullptr;
  if (status.role) all["role"] = status.role->leads ? "leader" : "standby";
  all["leader"] = nullptr;
  if (status.role && !status.role->leader.empty()) all["leader"] = status.role->leader;
  if (status.role && !status.role->trouble.empty()) all["etcd_trouble"] = status.role->trouble;
  all["addresses"] = json::array(status.addresses.begin(), status.addresses.end());
  all["token"] = status.token;
  all["tls"] = status.tls;
  all["watch_output"] = status.watch_output;
  json::object& jobs = all["jobs"].emplace_object();
  put(jobs, "live", status.live_jobs);
  put(jobs, "finished", status.finished_jobs);
  jobs["keep_finished_seconds"] = seconds_of(status.keep_finished);
  put(all["agents"].emplace_object(), "joined", status.agents);
  json::object& handshakes = all["handshakes"].emplace_object();
  put(handshakes, "under_way", status.newcomers);
  put(handshakes, "silent", status.silent);
  put(handshakes, "requests", status.requests);
  put(handshakes, "proofs", status.proofs);
  put(handshakes, "joins", status.joins);
  all["stores"] = stores_object(status);
  all["journal"] = nullptr;
  if (status.keeping) {
    all["journal"] = keeping_object(*status.keeping);
    all["journal"].as_object()["path"] = status.journal_path;
  }
  return written_json(all) + "\n";
}

std::string metrics_to_text(const DaemonMetrics& all, metrics::Format format) {
  const DaemonStatus& status = all.status;
  TextWriter out(format);
  out.family("ddprun_build_info", Type::kGauge, "1; what runs is in its labels.");
  out.sample({{"program", status.embedded ? "ddprun" : "ddprund"}, {"version", DDPRUN_VERSION}},
             std::uint64_t{1});
  out.single("ddprun_leader", Type::kGauge, "1: it serves jobs; 0: it stands by.",
             std::uint64_t{!status.role || status.role->leads});
  write_jobs(out, all);
  write_rounds(out, all);
  write_seconds(out, all.counts.seconds.shown());
  write_connections(out, all);
  write_stores(out, status);
  if (status.keeping) {
    out.single("ddprun_journal_kept", Type::kGauge, "1: what is decided is kept; 0: it is not.",
               std::uint64_t{status.keeping->trouble.empty()});
  }
  out.single("ddprun_time_seconds", Type::kGauge, "The clock of this host, since 1970.",
             seconds_of(status.time));
  metrics::write(out, all.process);
  return out.finish();
}

}  // namespace ddprun::rendezvous
