// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "common/endpoint.h"
#include "common/suggest.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {
namespace {

// Keys of --rdzv-conf: those that ddprun heeds, then those that torchrun knows and that mean
// nothing here (docs/launcher.md).
constexpr std::array<std::string_view, 17> kRdzvConfKeys = {"is_host",
                                                            "join_timeout",
                                                            "last_call_timeout",
                                                            "keep_alive_timeout",
                                                            "start_timeout",
                                                            "exit_barrier_timeout",
                                                            "replacement_timeout",
                                                            "keep_alive_interval",
                                                            "keep_alive_max_attempt",
                                                            "timeout",
                                                            "read_timeout",
                                                            "close_timeout",
                                                            "heartbeat_timeout",
                                                            "store_type",
                                                            "rank",
                                                            "protocol",
                                                            "cas_backoff_max_seconds"};

constexpr int kMaxNodes = 1'000'000;         // as the control protocol has it
constexpr std::size_t kMaxNameBytes = 1024;  // job ids and roles: in every worker's environment

// Names go into messages, log lines and environment variables.
void check_name(const char* flag, const std::string& name, std::vector<std::string>& problems) {
  const bool has_control = std::any_of(name.begin(), name.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < ' ' || letter == 0x7f;
  });
  if (name.size() > kMaxNameBytes || has_control) {
    problems.push_back(std::string(flag) + ": wants at most " + std::to_string(kMaxNameBytes) +
                       " bytes without control characters");
  }
}

void check_host(const char* flag, const std::string& host, std::vector<std::string>& problems) {
  if (host.empty() || is_host(host)) return;
  problems.push_back(std::string(flag) + "=" + host + ": wants a host name or an address, no port");
}

bool is_boolean(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return value == "1" || value == "0" || value == "true" || value == "false" || value == "yes" ||
         value == "no" || value == "t" || value == "f" || value == "y" || value == "n";
}

void check_sizes(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.min_nodes < 1 || config.max_nodes < config.min_nodes) {
    problems.push_back("--nnodes: wants N or MIN:MAX with 1 ≤ MIN ≤ MAX");
  }
  if (config.max_nodes > kMaxNodes) {
    problems.push_back("--nnodes: at most " + std::to_string(kMaxNodes));
  }
  if (config.rendezvous_timeout.count() <= 0) {
    problems.emplace_back("--rendezvous-timeout: must be more than 0 seconds");
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
    } else if (endpoint->port == 0 && config.max_nodes > 1) {
      problems.push_back("--rdzv-endpoint=" + config.rdzv_endpoint +
                         ": the other nodes can't know a free port; give a number");
    }
  }
  if (config.standalone && config.max_nodes > 1) {
    problems.push_back("--standalone: is for one node, but --nnodes=" +
                       std::to_string(config.max_nodes));
  }
  check_host("--master-addr", config.master_addr, problems);
  check_host("--local-addr", config.local_addr, problems);
  check_name("--rdzv-id", config.rdzv_id, problems);
  check_name("--role", config.role, problems);
  check_name("--topology", config.topology, problems);
  for (const auto& [key, value] : config.rdzv_conf) {
    if (key == "is_host" && !is_boolean(value)) {
      problems.push_back("--rdzv-conf=is_host=" + value + ": must be 1 or 0");
    }
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

void check_preflight(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.preflight_timeout.count() <= 0) {
    problems.emplace_back("--preflight-timeout: must be more than 0 seconds");
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
  check_preflight(config, problems);
  check_program(config, problems);
  return problems;
}

}  // namespace ddprun::launcher
