// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string_view>

#include "common/endpoint.h"
#include "launcher/launch_config.h"
#include "launcher/suggest.h"

namespace ddprun::launcher {
namespace {

// Keys of --rdzv-conf: those that ddprun heeds, then those that torchrun knows and that mean
// nothing here (docs/launcher.md).
constexpr std::array<std::string_view, 13> kRdzvConfKeys = {"is_host",
                                                            "join_timeout",
                                                            "timeout",
                                                            "read_timeout",
                                                            "last_call_timeout",
                                                            "close_timeout",
                                                            "heartbeat_timeout",
                                                            "store_type",
                                                            "keep_alive_interval",
                                                            "rank",
                                                            "protocol",
                                                            "keep_alive_max_attempt",
                                                            "cas_backoff_max_seconds"};

void check_sizes(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.min_nodes < 1 || config.max_nodes < config.min_nodes) {
    problems.push_back("--nnodes: wants N or MIN:MAX with 1 ≤ MIN ≤ MAX");
  }
  if (config.max_restarts < 0) problems.push_back("--max-restarts: can't be negative");
  if (config.node_rank && *config.node_rank < 0) {
    problems.push_back("--node-rank: can't be negative");
  }
  if (config.node_rank && *config.node_rank >= config.max_nodes && config.max_nodes >= 1) {
    problems.push_back("--node-rank=" + std::to_string(*config.node_rank) +
                       ": must be below --nnodes=" + std::to_string(config.max_nodes));
  }
}

void check_rendezvous(const LaunchConfig& config, std::vector<std::string>& problems) {
  const std::string& backend = config.rdzv_backend;
  if (backend.starts_with("etcd")) {
    problems.push_back("--rdzv-backend=" + backend +
                       ": ddprun has its own rendezvous; for one that survives the loss of its "
                       "node see --ha=");
  } else if (!backend.empty() && backend != "c10d" && backend != "static") {
    problems.push_back("--rdzv-backend=" + backend + ": must be c10d or static");
  }
  if (!config.rdzv_endpoint.empty() && !config.standalone) {
    const auto endpoint = parse_endpoint(config.rdzv_endpoint, kDefaultRendezvousPort);
    if (!endpoint || endpoint->host.empty()) {
      problems.push_back("--rdzv-endpoint=" + config.rdzv_endpoint +
                         ": wants HOST or HOST:PORT (IPv6: [ADDR]:PORT)");
    }
  }
  if (config.standalone && config.max_nodes > 1) {
    problems.push_back("--standalone: is for one node, but --nnodes=" +
                       std::to_string(config.max_nodes));
  }
  for (const auto& [key, value] : config.rdzv_conf) {
    bool known = false;
    std::vector<std::string> names;
    for (const auto name : kRdzvConfKeys) {
      known = known || key == name;
      names.emplace_back(name);
    }
    if (!known) {
      problems.push_back("--rdzv-conf: unknown key \"" + key + "\"" + did_you_mean(key, names));
    }
  }
}

void check_program(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.program.empty()) {
    problems.push_back("PROGRAM is missing: ddprun [flags] PROGRAM [args…] (ddprun --help)");
  }
  if (config.module && config.no_python) {
    problems.push_back("-m/--module: can't be used with --no-python");
  }
}

}  // namespace

std::vector<std::string> validate(const LaunchConfig& config) {
  std::vector<std::string> problems;
  check_sizes(config, problems);
  check_rendezvous(config, problems);
  check_program(config, problems);
  return problems;
}

}  // namespace ddprun::launcher
