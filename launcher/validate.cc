// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "common/endpoint.h"
#include "common/process_facts.h"
#include "launcher/launch_config.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr int kMaxNodes = 1'000'000;         // the control protocol's limit
constexpr std::size_t kMaxNameBytes = 1024;  // job ids and roles: they go to each worker

// Names are used in messages, log lines and environment variables.
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

void check_sizes(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.max_nodes > kMaxNodes) {
    problems.push_back("--nnodes: at most " + std::to_string(kMaxNodes));
  }
  if (config.node_rank && *config.node_rank >= config.max_nodes) {
    problems.push_back("--node-rank=" + std::to_string(*config.node_rank) +
                       ": must be below --nnodes=" + std::to_string(config.max_nodes));
  }
}

void check_rdzv_conf(const LaunchConfig& config, std::vector<std::string>& problems) {
  for (const auto& [key, value] : config.rdzv_conf) {
    if (key == "is_host" && !parse_switch(value)) {
      problems.push_back("--rdzv-conf=is_host=" + value + ": must be 1 or 0");
    }
    if (key == "store_type" && value != "tcp") {
      problems.push_back("--rdzv-conf=store_type=" + value +
                         ": must be tcp; nodes meet at HOST:PORT, not in a file");
    }
  }
}

void check_rendezvous(const LaunchConfig& config, std::vector<std::string>& problems) {
  const std::string& backend = config.wanted_backend;
  if (backend.starts_with("etcd")) {
    problems.push_back("--rdzv-backend=" + backend +
                       ": ddprun has its own rendezvous; for one that survives the loss of its "
                       "node see ddprund --ha=etcd://");
  } else if (!backend.empty() && backend != "c10d" && backend != "static") {
    problems.push_back("--rdzv-backend=" + backend + ": must be c10d or static");
  }
  if (!config.rdzv_endpoint.empty() && !config.standalone) {
    const auto [endpoints, problem] = parse_endpoints(config.rdzv_endpoint, kDefaultRendezvousPort);
    if (!problem.empty()) {
      problems.push_back("--rdzv-endpoint=" + config.rdzv_endpoint + ": " + problem);
    } else if (endpoints.front().port == 0 && config.max_nodes > 1) {
      problems.push_back("--rdzv-endpoint=" + config.rdzv_endpoint +
                         ": the other nodes can't know a free port; give a number");
    } else if (endpoints.front().port == 0 && config.standing_agents) {
      problems.push_back("--rdzv-endpoint=" + config.rdzv_endpoint +
                         ": nobody listens at port 0; give the port that the ddprund has");
    }
  }
  if (config.standalone && config.max_nodes > 1) {
    problems.push_back("--standalone: is for one node, but --nnodes=" +
                       std::to_string(config.max_nodes));
  }
  check_host("--master-addr", config.master_addr, problems);
  check_host("--local-addr", config.local_addr, problems);
  if (config.max_nodes > 1 && names_any_address(config.local_addr)) {
    problems.push_back("--local-addr=" + config.local_addr +
                       ": other nodes can't reach that address: give this node's name or address, "
                       "as in --local-addr=" +
                       host_name());
  }
  check_name("--rdzv-id", config.rdzv_id, problems);
  check_name("--role", config.role, problems);
  check_name("--topology", config.topology, problems);
  check_rdzv_conf(config, problems);
}

void check_hosts(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (!config.hosts.is_set()) {
    if (!config.hosts.include.empty() || !config.hosts.exclude.empty()) {
      problems.emplace_back(
          "--include-hosts, --exclude-hosts: of which? Give --hosts or --hostfile");
    }
    if (!config.hosts.env.empty() && !config.standing_agents) {
      problems.emplace_back(
          "--env: is for the workers on the hosts of --hosts or --hostfile; without these, workers "
          "get this environment (env NAME=VALUE ddprun …)");
    }
    return;
  }
  if (!config.hosts.hosts.empty() && !config.hosts.hostfile.empty()) {
    problems.emplace_back("--hosts and --hostfile: give one of the two");
  }
  const std::string flag = config.hosts.hosts.empty() ? "--hostfile" : "--hosts";
  if (config.standalone) problems.push_back("--standalone: is for one node, without " + flag);
  if (config.node_rank) {
    problems.push_back("--node-rank: with " + flag +
                       " the order of the hosts is that of the ranks");
  }
  if (!config.local_addr.empty()) {
    problems.push_back("--local-addr: is of one node, and with " + flag + " there are several");
  }
  if (config.rdzv_conf.contains("is_host")) {
    problems.push_back("--rdzv-conf=is_host: is of one node, and with " + flag +
                       " there are several");
  }
}

// With a shorter time a busy machine's delays look like a dead node, in each round again.
constexpr std::chrono::milliseconds kMinKeepAlive{200};

void check_times(const LaunchConfig& config, std::vector<std::string>& problems) {
  const auto keep_alive = config.timeouts.keep_alive;
  if (keep_alive.count() > 0 && keep_alive < kMinKeepAlive) {  // 0 was refused already
    problems.emplace_back("--keep-alive-timeout: must be at least 0.2 seconds");
  }
}

void check_limits(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.worker_limits.cpuset_source == agent::CpusetSource::kBinding &&
      config.binding == agent::BindingMode::kNone) {
    problems.emplace_back("--worker-cpuset=binding: of which plan? Give --numa-binding, too");
  }
}

void check_program(const LaunchConfig& config, std::vector<std::string>& problems) {
  if (config.program.empty()) {
    problems.push_back("PROGRAM is missing: ddprun [flags] PROGRAM [args…] (ddprun --help)");
  }
  if (config.json && !config.dry_run) problems.emplace_back("--json: is for --dry-run");
  const PreemptionOptions& preemption = config.preemption;
  if (preemption.time_limit && *preemption.time_limit <= preemption.notice) {
    problems.push_back("--time-limit: must be longer than --preemption-notice (" +
                       std::to_string(preemption.notice.count() / 1000) + " s)");
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
  check_hosts(config, problems);
  check_times(config, problems);
  check_limits(config, problems);
  check_program(config, problems);
  return problems;
}

}  // namespace ddprun::launcher
