// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/dry_run.h"

#include <unistd.h>

#include <utility>

#include "agent/agent_socket.h"
#include "agent/binding/binding_plan.h"
#include "agent/output/log_tree.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/nodelist.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "launcher/cli.h"
#include "launcher/endpoint_claim.h"
#include "launcher/hosts/fleet_plan.h"
#include "launcher/options/option_values.h"
#include "launcher/prepare.h"

namespace ddprun::launcher {
namespace {

const char* mode_name(RendezvousMode mode) {
  return mode == RendezvousMode::kLocal    ? "local"
         : mode == RendezvousMode::kStatic ? "static"
                                           : "elastic";
}

bool is_numeric_loopback(const std::string& host) { return host == "127.0.0.1" || host == "::1"; }

// Looks no name up, though a real run does (endpoint_claim.h).
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

// Returns Slurm's hosts, if they are in the order of ranks: Slurm gives this node its rank, and
// --node-rank doesn't.
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

// Returns what is known of the round before the nodes meet, if each node is like that of `plan`.
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

// Returns the workers' options, files and socket as a run would have them. `runtime_directory` is
// for the socket.
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

constexpr char kPrivateDirectory[] = "<private directory>";
constexpr char kTemporaryDirectory[] = "<temporary directory there>";

class HostsDryRun {
 public:
  explicit HostsDryRun(const FleetPlan& fleet)
      : fleet_(fleet), is_told_(!fleet.fleet.endpoint.empty()) {
    result_.notes = fleet.notes;
    read_first_node();
  }

  DryRun say(bool with_all_workers) {
    say_where_nodes_meet();
    const int num_nodes = static_cast<int>(fleet_.fleet.nodes.size());
    known_ = round_knowledge(node_);
    known_.ranks = known_.num_nodes = true;
    for (int index = 0; index < num_nodes; ++index) {
      const auto workers = parse_number(fleet_.nproc_per_node[static_cast<std::size_t>(index)]);
      known_.num_workers = known_.num_workers && workers.has_value();
      if (index < result_.num_nodes) {
        known_.nodes[static_cast<std::size_t>(index)].num_workers = workers.value_or(1);
      }
    }
    const bool is_range = node_.config.min_nodes != node_.config.max_nodes;
    if (is_range || node_.config.spares > 0) result_.assumed.emplace_back("every host can be had");
    const auto rounds = forecast_rounds(known_);
    if (known_.num_workers) result_.world_size = rounds.front().world_size;

    const WorkerForecaster forecaster(scene(), known_, rounds.front());
    for (int index = 0; index < num_nodes; ++index) {
      NodeDryRun& node = add_node(index);
      if (node.is_spare) continue;
      const membership::StartRound& round = rounds[static_cast<std::size_t>(index)];
      if (known_.num_workers) node.first_global_rank = round.first_global_rank;
      if (index > 0 && !with_all_workers) continue;
      node.workers = forecaster.workers(round, node.num_workers.value_or(1));
    }
    result_.environment = forecaster.common();
    result_.removed = forecaster.removed();
    return std::move(result_);
  }

 private:
  // Reads the first host's arguments as its ddprun will. The other hosts' differ only in place and
  // number.
  void read_first_node() {
    const channel::Job job = job_at(fleet_, 0, kPlace, true);
    node_.environment = from_strings(job.environment);
    for (const auto& [name, value] : node_.environment) result_.forwarded.push_back(name);
    CommandLine line = parse_command_line(job.arguments, node_.environment);
    for (const std::string& problem : line.problems) say_of_hosts(problem);
    node_.config = std::move(line.config);
    for (const std::string& note : node_.config.notes) result_.notes.push_back(note);
    result_.num_nodes = node_.config.max_nodes;
    node_.num_workers = parse_number(fleet_.nproc_per_node.front()).value_or(2);

    node_.program = find_program(node_.config, "ddprun", node_.environment);
    if (!node_.program.problem.empty()) {
      say_of_hosts(node_.program.problem);
      node_.program.argv = {node_.config.program};
      for (const auto& word : node_.config.program_args) node_.program.argv.push_back(word);
    } else if (!node_.program.note.empty()) {
      result_.notes.push_back(node_.program.note);
    }

    LaunchConfig placed = node_.config;  // CPUs are known only on the hosts
    placed.binding = agent::BindingMode::kNone;
    placed.show_binding = false;
    node_.placement = place_workers(placed, node_.environment, node_.num_workers, {});
    for (const std::string& problem : node_.placement.problems) say_of_hosts(problem);
    if (!node_.placement.problems.empty()) node_.placement.devices.clear();
    const OutputSetup output = set_up_output(node_.config.output, node_.environment, "ddprun",
                                             kTemporaryDirectory, "", LogDirectory::kNotLookedAt);
    if (!output.note.empty()) result_.notes.push_back(output.note);
    result_.config = node_.config;
  }

  void say_of_hosts(const std::string& problem) {
    result_.notes.push_back("on this machine it would be refused, each host decides by itself: " +
                            problem);
  }

  void say_where_nodes_meet() {
    const std::string first = fleet_.fleet.nodes.front().address();
    RendezvousPlan& meeting = node_.rendezvous;
    if (is_told_) {
      const Discovery found = discover_endpoint({.config = node_.config,
                                                 .environment = node_.environment,
                                                 .files = {},
                                                 .user_id = ::getuid(),
                                                 .random_id = kDrawnAtStart});
      if (found.plan) meeting = *found.plan;
      result_.endpoint = to_string(meeting.endpoints());
      result_.origin = meeting.origin;
      const bool is_static = meeting.mode == RendezvousMode::kStatic;
      result_.served_by = is_static ? "node rank 0"
                          : !meeting.others.empty()
                              ? "the ddprund that leads"
                              : "the host that has this address, or whoever serves there already";
    } else {
      meeting.mode = RendezvousMode::kElastic;
      meeting.job_id = node_.config.rdzv_id;
      result_.endpoint = "<address at which ssh reaches " + first + ">:<a free port>";
      if (fleet_.fleet.nodes.size() == 1 && fleet_.fleet.nodes.front().is_here) {
        meeting.endpoint.host = "127.0.0.1";
        result_.endpoint = "127.0.0.1:<a free port>";
      }
      result_.origin = "the first of the hosts";
      result_.served_by = first;
    }
    meeting.node_rank = 0;
    result_.mode = meeting.mode == RendezvousMode::kStatic ? "static" : "elastic";
    result_.job_id = meeting.job_id;
  }

  WorkerScene scene() {
    WorkerScene scene = worker_scene(node_, kTemporaryDirectory);
    scene.socket_directory = kPrivateDirectory;
    scene.environment.terminal_columns.reset();  // the hosts' output is a pipe
    scene.is_num_workers_known = known_.num_workers;
    result_.run_directory = scene.log_directory.substr(0, scene.log_directory.rfind('/'));
    return scene;
  }

  NodeDryRun& add_node(int index) {
    const auto at = static_cast<std::size_t>(index);
    const Host& named = fleet_.fleet.nodes[at];
    NodeDryRun& node = result_.nodes.emplace_back();
    node.host = named.name;
    node.is_here = named.is_here;
    node.is_spare = index >= result_.num_nodes;
    if (!node.is_spare) node.rank = index;
    node.num_workers = parse_number(fleet_.nproc_per_node[at]);
    node.command = fleet_.commands[at];
    const std::string place = index == 0 ? fleet_.fleet.nodes.front().address() : result_.endpoint;
    node.arguments = job_at(fleet_, index, place, index == 0).arguments;
    return node;
  }

  static constexpr char kPlace[] = "host";

  const FleetPlan& fleet_;
  const bool is_told_;  // the user gave the place where the nodes meet
  JobPlan node_;        // the first host's
  RoundKnowledge known_;
  DryRun result_;
};

}  // namespace

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

DryRun dry_run_of_hosts(const FleetPlan& plan, bool with_all_workers) {
  return HostsDryRun(plan).say(with_all_workers);
}

}  // namespace ddprun::launcher
