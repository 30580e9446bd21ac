// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet_plan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "common/env_names.h"
#include "common/forwarded_environment.h"
#include "common/log.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/options/parse_value.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kAgentPatience{10};     // beyond --shutdown-timeout: the agent's with its ddprun
constexpr seconds kLauncherPatience{20};  // likewise: the launcher's with its agents

// Made anew for each node, or the launcher's own.
constexpr std::array<std::string_view, 22> kNotForwarded = {"hosts",
                                                            "hostfile",
                                                            "include-hosts",
                                                            "exclude-hosts",
                                                            "ssh",
                                                            "remote-ddprun",
                                                            "env",
                                                            "ssh-fanout",
                                                            "ssh-timeout",
                                                            "ssh-keep-alive",
                                                            "nnodes",
                                                            "node-rank",
                                                            "nproc-per-node",
                                                            "rdzv-id",
                                                            "rdzv-conf",
                                                            "rdzv-endpoint",
                                                            "config",
                                                            "standalone",
                                                            "local-addr",
                                                            "dry-run",
                                                            "json",
                                                            "standing-agents"};

std::string_view first_label(std::string_view name) { return name.substr(0, name.find('.')); }

class Planner {
 public:
  explicit Planner(const FleetRequest& request)
      : request_(request), config_(request.config), options_(request.config.hosts) {}

  FleetPlan plan() {
    read_hosts();
    if (plan_.problems.empty()) read_sizes();
    if (plan_.problems.empty()) read_ssh();
    if (plan_.problems.empty()) fill();
    return std::move(plan_);
  }

 private:
  void refuse(const std::string& problem) { plan_.problems.push_back(problem); }

  void read_hosts() {
    HostList list = options_.hosts.empty()
                        ? parse_host_file(request_.hostfile_text, options_.hostfile)
                        : parse_hosts(options_.hosts, "--hosts");
    if (!list.problem.empty()) return refuse(list.problem);
    plan_.notes = std::move(list.notes);
    hosts_ = std::move(list.hosts);
    if (std::string why = filter_hosts(hosts_, options_.include, options_.exclude); !why.empty()) {
      refuse(why);
    }
  }

  bool is_given(const char* option) const { return request_.given.contains(option); }

  void read_sizes() {
    const int num_hosts = static_cast<int>(hosts_.size());
    min_nodes_ = config_.min_nodes;
    max_nodes_ = config_.max_nodes;
    if (!is_given("nnodes")) {
      min_nodes_ = max_nodes_ = num_hosts - config_.spares;
    }
    if (max_nodes_ < 1) {
      return refuse(
          concat("--spares=", config_.spares, ": leaves no node, there are ", num_hosts, " hosts"));
    }
    if (num_hosts < min_nodes_ || num_hosts > max_nodes_ + config_.spares) {
      return refuse(concat("--nnodes=", config_.min_nodes,
                           min_nodes_ == max_nodes_ ? "" : concat(":", max_nodes_), ": there are ",
                           num_hosts, " hosts; leave --nnodes out",
                           num_hosts > max_nodes_ ? ", or give --spares" : ""));
    }
    check_slots();
  }

  void check_slots() {
    const bool has_nproc = is_given("nproc-per-node");
    const auto with = std::find_if(hosts_.begin(), hosts_.end(),
                                   [](const Host& host) { return host.slots != 0; });
    const auto without = std::find_if(hosts_.begin(), hosts_.end(),
                                      [](const Host& host) { return host.slots == 0; });
    if (!has_nproc && with != hosts_.end() && without != hosts_.end()) {
      return refuse(concat(without->where, ": ", without->name, " has no slots, but ", with->name,
                           " has (", with->where, "): say it for all, or give --nproc-per-node"));
    }
    const auto wanted = has_nproc ? parse_number(config_.nproc_per_node) : std::nullopt;
    for (const Host& host : hosts_) {
      if (wanted && host.slots != 0 && *wanted > host.slots) {
        return refuse(concat(host.where, ": ", host.name, " has ", host.slots,
                             " slots, but --nproc-per-node=", *wanted));
      }
    }
  }

  void read_ssh() {
    auto words = split_words(options_.ssh);
    if (!words) return refuse("--ssh=" + options_.ssh + ": is no command line");
    plan_.ssh = std::move(*words);
    plan_.keep_alive = options_.keep_alive;
    plan_.remote_program =
        options_.remote_ddprun.empty() ? request_.own_program : options_.remote_ddprun;
  }

  // Neither looks a name up.
  bool is_here(const Host& host) const {
    const std::string& name = host.name;
    if (name.find('@') != std::string::npos) return false;  // maybe another user
    if (name == "localhost" || name == request_.own_host) return true;
    if (request_.is_own_address(name)) return true;
    const bool has_domain = name.find('.') != std::string::npos;
    const bool own_has_domain = request_.own_host.find('.') != std::string::npos;
    return has_domain != own_has_domain && first_label(name) == first_label(request_.own_host);
  }

  // Where the nodes meet if the user says so; then ddprun's usual rules hold on each node.
  std::vector<std::string> told_endpoint() {
    if (!config_.rdzv_endpoint.empty()) {
      plan_.fleet.endpoint = config_.rdzv_endpoint;
    } else if (!config_.master_addr.empty()) {
      plan_.fleet.endpoint = config_.master_addr;
      return {};  // an option that is forwarded
    } else {
      for (const char* name : {env::kRdzvEndpoint, env::kPetRdzvEndpoint}) {
        const auto value = find_variable(request_.environment, name);
        if (value && plan_.fleet.endpoint.empty()) plan_.fleet.endpoint = *value;
      }
    }
    if (plan_.fleet.endpoint.empty()) return {};
    return {"--rdzv-endpoint=" + plan_.fleet.endpoint};
  }

  void fill() {
    std::vector<std::string> shared;
    for (const auto& [name, value] : request_.given) {
      if (is_forwarded_option(name)) shared.push_back("--" + name + "=" + value);
    }
    shared.push_back(concat("--nnodes=", min_nodes_));
    if (min_nodes_ != max_nodes_) shared.back() += concat(":", max_nodes_);
    plan_.job_id = config_.rdzv_id.empty() ? "ssh-" + request_.random_id : config_.rdzv_id;
    shared.push_back("--rdzv-id=" + plan_.job_id);
    for (std::string& flag : told_endpoint()) shared.push_back(std::move(flag));
    FleetOptions& fleet = plan_.fleet;
    fleet.min_nodes = min_nodes_;
    fleet.fanout = options_.fanout;
    if (const auto& handled = config_.signals_to_handle.numbers; !handled.empty()) {
      fleet.stop_signals = handled;
    }
    fleet.reach_timeout = options_.timeout;
    fleet.stop_timeout = config_.shutdown_timeout + kLauncherPatience;
    fleet.verdict_patience += config_.replacement_timeout;
    for (std::size_t i = 0; i < hosts_.size(); ++i) add_node(static_cast<int>(i), shared);
  }

  void add_node(int index, const std::vector<std::string>& shared) {
    const Host& host = hosts_[index];
    FleetNode node{.name = host.name, .address = std::string(host.address())};
    node.is_here = is_here(host);
    channel::Job job;
    job.directory = request_.directory;
    job.stop_signal = plan_.fleet.stop_signals.front();
    job.stop_seconds = static_cast<int>(
        std::chrono::ceil<seconds>(config_.shutdown_timeout + kAgentPatience).count());
    job.arguments = shared;
    std::vector<std::string>& arguments = job.arguments;
    const bool is_by_slots = !is_given("nproc-per-node") && host.slots != 0;
    plan_.nproc_per_node.push_back(is_by_slots ? std::to_string(host.slots)
                                               : config_.nproc_per_node);
    arguments.push_back("--nproc-per-node=" + plan_.nproc_per_node.back());
    // The order of the list is the order of the nodes; spares have no rank yet.
    if (index < max_nodes_) arguments.push_back("--node-rank=" + std::to_string(index));
    if (const auto conf = request_.given.find("rdzv-conf"); conf != request_.given.end()) {
      arguments.push_back("--rdzv-conf=" + conf->second);
    }
    arguments.emplace_back("--");
    arguments.push_back(config_.program);
    arguments.insert(arguments.end(), config_.program_args.begin(), config_.program_args.end());
    job.environment = forwarded_environment(request_.environment, options_.env);
    plan_.jobs.push_back(std::move(job));
    plan_.commands.push_back(node.is_here
                                 ? std::vector<std::string>{request_.own_program, kFromChannel}
                                 : agent_command(plan_.ssh, host.name, plan_.remote_program));
    plan_.fleet.nodes.push_back(std::move(node));
  }

  const FleetRequest& request_;
  const LaunchConfig& config_;
  const HostsOptions& options_;
  std::vector<Host> hosts_;
  int min_nodes_ = 1;
  int max_nodes_ = 1;
  FleetPlan plan_;
};

}  // namespace

FleetPlan plan_fleet(const FleetRequest& request) { return Planner(request).plan(); }

channel::Job job_at(const FleetPlan& plan, int node, const std::string& place, bool is_server) {
  channel::Job job = plan.jobs[node];
  if (!plan.fleet.endpoint.empty()) return job;  // the user has said where
  if (is_server) {
    job.serve_at = place;
  } else {
    job.arguments.insert(job.arguments.begin(), "--rdzv-endpoint=" + place);
  }
  // Nobody else shall serve, be the address its own, too.
  const std::string conf = is_server ? "is_host=1" : "is_host=0";
  const auto given = std::find_if(job.arguments.begin(), job.arguments.end(), [](const auto& each) {
    return each == "--" || each.starts_with("--rdzv-conf=");
  });
  if (*given == "--") {
    job.arguments.insert(given, "--rdzv-conf=" + conf);
  } else {
    *given += "," + conf;
  }
  return job;
}

bool is_forwarded_option(const std::string& name) {
  return std::find(kNotForwarded.begin(), kNotForwarded.end(), name) == kNotForwarded.end();
}

}  // namespace ddprun::launcher
