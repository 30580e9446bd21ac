// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/node_dry_run.h"

#include <algorithm>
#include <utility>

#include "agent/agent_socket.h"
#include "agent/binding/machine_layout.h"
#include "agent/output/log_tree.h"
#include "common/endpoint_list.h"
#include "common/env_names.h"
#include "common/log.h"
#include "common/nodelist.h"
#include "common/process_facts.h"
#include "launcher/output_setup.h"
#include "launcher/own_address.h"
#include "launcher/worker_settings.h"

namespace ddprun::launcher {
namespace {

const char* mode_name(RendezvousMode mode) {
  return mode == RendezvousMode::kLocal    ? "local"
         : mode == RendezvousMode::kStatic ? "static"
                                           : "elastic";
}

bool is_numeric_loopback(const std::string& host) { return host == "127.0.0.1" || host == "::1"; }

// Without a look-up: endpoint_claim.h makes one.
std::string served_by(const RendezvousPlan& plan) {
  if (!plan.others.empty()) return "the ddprund that leads";
  if (plan.is_host) return *plan.is_host ? "this node" : "another node";
  const std::string& host = plan.endpoint.host;
  if (host == "localhost") return "this node";
  if (const auto is_here = is_own_address(host)) {
    return *is_here ? "this node, which has this address"
                    : "another node: this one doesn't have this address";
  }
  return "the node that has the address of " + host + " (looked up at the start)";
}

// Slurm's order of hosts is that of the ranks where it gives this node its rank (--node-rank
// doesn't).
std::vector<std::string> hosts_by_rank(const JobPlan& plan) {
  const auto list = find_variable(plan.environment, env::kSlurmStepNodelist);
  if (!list || plan.config.node_rank || !plan.rendezvous.node_rank) return {};
  auto hosts = expand_nodelist(*list);
  return hosts && static_cast<int>(hosts->size()) == plan.config.max_nodes
             ? *hosts
             : std::vector<std::string>();
}

std::vector<ForecastPlace> places(const JobPlan& plan) {
  const CpuSet allowed = agent::allowed_cpus();
  std::vector<agent::Gpu> gpus = agent::read_machine_layout("/", allowed).gpus;
  const auto visible = plan.environment.find(env::kCudaVisibleDevices);
  gpus = agent::visible_gpus(
      gpus, visible == plan.environment.end() ? std::nullopt : std::optional(visible->second));
  std::vector<ForecastPlace> places;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(plan.num_workers); ++rank) {
    ForecastPlace& place = places.emplace_back();
    place.is_bound = rank < plan.placement.cpus.size();
    place.cpus = to_text(place.is_bound ? plan.placement.cpus[rank] : allowed);
    if (rank < plan.placement.devices.size()) {
      place.gpu = plan.placement.devices[rank];
    } else if (!gpus.empty()) {
      const agent::Gpu& gpu = gpus[rank % gpus.size()];
      place.gpu = concat(gpu.index, " ", gpu.bus_id);
    }
  }
  return places;
}

}  // namespace

RoundKnowledge round_knowledge(const JobPlan& plan) {
  const LaunchConfig& config = plan.config;
  const RendezvousPlan& meeting = plan.rendezvous;
  const bool is_range = config.min_nodes != config.max_nodes;
  const bool is_alone = config.max_nodes == 1 && config.spares == 0;
  RoundKnowledge known;
  known.role = config.role;
  known.num_nodes = !is_range;
  known.ranks = is_alone || (meeting.node_rank && !is_range);
  known.is_static = meeting.mode == RendezvousMode::kStatic;
  known.is_proxied = config.wanted_store == membership::StoreMode::kProxy;
  known.endpoint = meeting.endpoint;
  known.store_port = known.is_static ? 0 : config.master_port.value_or(0);
  known.nodes.assign(static_cast<std::size_t>(config.max_nodes),
                     NodeForecast{.num_workers = plan.num_workers, .addr = {}});
  if (meeting.others.empty() && is_numeric_loopback(meeting.endpoint.host)) {
    for (NodeForecast& node : known.nodes) node.addr = meeting.endpoint.host;
  }
  const int own = known.ranks ? meeting.node_rank.value_or(0) : 0;
  if (!config.local_addr.empty())
    known.nodes[static_cast<std::size_t>(own)].addr = config.local_addr;
  return known;
}

WorkerScene worker_scene(const JobPlan& plan, const std::string& runtime_directory) {
  WorkerScene scene;
  scene.environment = worker_environment_options(plan);
  scene.command = worker_command(plan);
  scene.output = plan.config.output;
  scene.socket_directory = agent::AgentSocket::new_directory(runtime_directory);
  const std::size_t drawn = scene.socket_directory.rfind('-') + 1;
  scene.socket_directory.replace(drawn, std::string::npos, kDrawnAtStart);
  if (plan.config.output.has_files()) {
    scene.log_directory = agent::LogTree::attempt_directory(
        agent::LogTree::run_directory(plan.config.output.log_dir, plan.rendezvous.job_id,
                                      kDrawnAtStart),
        0);
  }
  return scene;
}

DryRun dry_run_of_node(const Preparation& ready) {
  const JobPlan& plan = ready.plan;
  const RendezvousPlan& meeting = plan.rendezvous;
  DryRun result;
  result.config = plan.config;
  result.mode = mode_name(meeting.mode);
  result.endpoint = meeting.endpoint.port == 0 ? meeting.endpoint.host + ":<a free port>"
                                               : to_string(meeting.endpoints());
  result.origin = meeting.origin;
  result.served_by = served_by(meeting);
  result.job_id = meeting.job_id;
  result.num_nodes = plan.config.max_nodes;
  result.notes = ready.notes;
  result.isolation = plan.isolation;

  const RoundKnowledge known = round_knowledge(plan);
  const auto rounds = forecast_rounds(known);
  const auto own = static_cast<std::size_t>(known.ranks ? meeting.node_rank.value_or(0) : 0);
  if (known.num_nodes) result.world_size = rounds[own].world_size;
  if (plan.config.max_nodes > 1 && known.num_nodes) {
    result.assumed.push_back(concat("each node has ", plan.num_workers, " workers, as this one"));
  }
  const auto hosts = hosts_by_rank(plan);
  for (std::size_t rank = 0; known.ranks && rank < rounds.size(); ++rank) {
    NodeDryRun& node = result.nodes.emplace_back();
    node.rank = static_cast<int>(rank);
    node.num_workers = plan.num_workers;
    node.first_global_rank = rounds[rank].first_global_rank;
    if (rank < hosts.size()) node.host = hosts[rank];
    if (known.is_static && rank == 0) node.host = meeting.endpoint.host;
  }
  if (!known.ranks) result.nodes.emplace_back().num_workers = plan.num_workers;
  result.described = static_cast<int>(own);
  NodeDryRun& node = result.nodes[own];
  node.is_here = true;
  node.host = host_name();

  WorkerScene scene = worker_scene(plan, runtime_directory(plan.environment));
  result.run_directory = scene.log_directory.substr(0, scene.log_directory.rfind('/'));
  const WorkerForecaster forecaster(std::move(scene), known, rounds[own]);
  node.workers = forecaster.workers(rounds[own], plan.num_workers);
  node.places = places(plan);
  result.environment = forecaster.common();
  result.removed = forecaster.removed();
  return result;
}

}  // namespace ddprun::launcher
