// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/daemon_status.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/log.h"

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
  json::object object;
  object["connections"] = stats.num_connections;
  object["keys"] = stats.num_keys;
  object["bytes"] = stats.content_bytes;
  object["requests"] = stats.num_requests;
  object["slow_readers"] = stats.num_slow_readers;
  return object;
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
  json::object object;
  object["proxied"] = std::move(proxied);
  object["plain"] = usage_object(status.port_stores.plain);
  object["static_rounds"] = std::move(rounds);
  return object;
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
  all["addresses"] = json::array(status.addresses.begin(), status.addresses.end());
  all["token"] = status.token;
  all["tls"] = status.tls;
  all["watch_output"] = status.watch_output;
  json::object jobs;
  put(jobs, "live", status.live_jobs);
  put(jobs, "finished", status.finished_jobs);
  jobs["keep_finished_seconds"] = seconds_of(status.keep_finished);
  all["jobs"] = std::move(jobs);
  json::object agents;
  put(agents, "joined", status.agents);
  all["agents"] = std::move(agents);
  json::object handshakes;
  put(handshakes, "under_way", status.newcomers);
  put(handshakes, "silent", status.silent);
  put(handshakes, "requests", status.requests);
  put(handshakes, "proofs", status.proofs);
  put(handshakes, "joins", status.joins);
  all["handshakes"] = std::move(handshakes);
  all["stores"] = stores_object(status);
  all["journal"] = nullptr;
  if (status.keeping) {
    json::object journal = keeping_object(*status.keeping);
    journal["path"] = status.journal_path;
    all["journal"] = std::move(journal);
  }
  return json::serialize(all) + "\n";
}

}  // namespace ddprun::rendezvous
