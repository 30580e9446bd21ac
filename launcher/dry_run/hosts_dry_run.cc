// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/hosts_dry_run.h"

#include <unistd.h>

#include <utility>

#include "common/check.h"
#include "common/endpoint_list.h"
#include "common/env_names.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "launcher/cli.h"
#include "launcher/dry_run/node_dry_run.h"
#include "launcher/options/parse_value.h"
#include "launcher/output_setup.h"

namespace ddprun::launcher {
namespace {

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
  // What the first host's ddprun makes of its arguments: the others' differ in place and number.
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

    node_.program = find_program(
        {.config = node_.config,
         .argv0 = "ddprun",
         .own_folder = own_folder(),
         .path = find_variable(node_.environment, env::kPath).value_or("/bin:/usr/bin"),
         .python_exec = find_variable(node_.environment, env::kPythonExec).value_or("")},
        real_file_system());
    if (!node_.program.problem.empty()) {
      say_of_hosts(node_.program.problem);
      node_.program.argv = {node_.config.program};
      for (const auto& word : node_.config.program_args) node_.program.argv.push_back(word);
    } else if (!node_.program.note.empty()) {
      result_.notes.push_back(node_.program.note);
    }

    LaunchConfig placed = node_.config;  // where CPUs are concerned the hosts have to be asked
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
  const bool is_told_;  // the user says where the nodes meet
  JobPlan node_;        // of the first host
  RoundKnowledge known_;
  DryRun result_;
};

}  // namespace

DryRun dry_run_of_hosts(const FleetPlan& plan, bool with_all_workers) {
  return HostsDryRun(plan).say(with_all_workers);
}

}  // namespace ddprun::launcher
