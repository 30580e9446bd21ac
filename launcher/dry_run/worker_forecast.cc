// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/worker_forecast.h"

#include <algorithm>
#include <utility>

#include "agent/agent_socket.h"
#include "agent/failure_details.h"
#include "agent/observe/observer.h"
#include "agent/output/log_tree.h"
#include "common/env_names.h"
#include "rendezvous/membership/formation.h"
#include "rendezvous/membership/state.h"

namespace ddprun::launcher {
namespace {

constexpr char kOwnAddr[] = "<this node's address>";
constexpr char kMasterAddr[] = "<node rank 0's address>";

membership::JobState job_state(const RoundKnowledge& knowledge) {
  membership::JobState job;
  job.settings.rdzv_backend = knowledge.is_static ? membership::kStaticBackend : "c10d";
  if (knowledge.is_proxied) job.settings.store = membership::StoreMode::kProxy;
  for (std::size_t rank = 0; rank < knowledge.nodes.size(); ++rank) {
    membership::Node& node = job.nodes.add(rank);
    node.join.num_workers = knowledge.nodes[rank].num_workers;
    node.join.role = knowledge.role;
    node.join.store_port = knowledge.store_port;
    node.facts.peer_addr = knowledge.nodes[rank].addr;
  }
  return job;
}

void say_unknown_addresses(const RoundKnowledge& knowledge, membership::StartRound& round) {
  if (round.node_addr.empty()) round.node_addr = kOwnAddr;
  if (round.master_node_addr.empty()) round.master_node_addr = kMasterAddr;
  if (knowledge.is_proxied) return;
  if (knowledge.is_static) {
    round.master_addr = knowledge.endpoint.host;
    round.master_port = knowledge.endpoint.port;
  } else {
    round.master_addr = round.master_node_addr;
  }
}

// A text that no placeholder has. Variables that change with it depend on the placeholder.
constexpr char kOther[] = ".";

std::string name_of(const std::string& variable) { return variable.substr(0, variable.find('=')); }

}  // namespace

std::vector<membership::StartRound> forecast_rounds(const RoundKnowledge& knowledge) {
  const membership::JobState job = job_state(knowledge);
  std::vector<membership::NodeId> order;
  for (const auto& [id, node] : job.nodes) order.push_back(id);
  std::vector<membership::StartRound> rounds;
  for (auto& [id, round] : start_messages(job, order, 1)) {
    say_unknown_addresses(knowledge, round);
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<OtherRound> other_rounds(const RoundKnowledge& knowledge,
                                     const membership::StartRound& round) {
  std::vector<OtherRound> others;
  if (!knowledge.ranks) {
    ++others.emplace_back(OtherRound{round, "<by the node's place>"}).round.node_rank;
  }
  if (!knowledge.ranks || !knowledge.num_workers) {
    OtherRound& other = others.emplace_back(OtherRound{round, "<by the node's place>"});
    ++other.round.first_global_rank;
    ++other.round.first_role_rank;
  }
  if (!knowledge.num_nodes) {
    ++others.emplace_back(OtherRound{round, "<as many as meet>"}).round.num_nodes;
  }
  if (!knowledge.num_nodes || !knowledge.num_workers) {
    OtherRound& other = others.emplace_back(OtherRound{round, "<as many as meet>"});
    ++other.round.world_size;
    ++other.round.role_world_size;
  }
  if (round.master_port == 0) {
    others.emplace_back(OtherRound{round, "<a free port>"}).round.master_port = 1;
  }
  OtherRound& moved = others.emplace_back(OtherRound{round, ""});
  for (std::string* addr :
       {&moved.round.node_addr, &moved.round.master_node_addr, &moved.round.master_addr}) {
    if (addr->starts_with('<')) *addr += '.';
  }
  return others;
}

WorkerForecaster::WorkerForecaster(WorkerScene scene, const RoundKnowledge& knowledge,
                                   const membership::StartRound& round)
    : scene_(std::move(scene)), are_ranks_known_(knowledge.ranks && knowledge.num_workers) {
  find_names(round);
  find_later(knowledge, round);
}

std::vector<std::string> WorkerForecaster::variables(const WorkerScene& scene,
                                                     const membership::StartRound& round,
                                                     int local_rank) const {
  const agent::WorkerPaths paths{
      .error_file =
          agent::worker_error_file(scene.log_directory, scene.socket_directory, local_rank),
      .agent_socket = agent::AgentSocket::path_in(scene.socket_directory),
      .observer = scene.environment.observes ? agent::observer_folder(scene.socket_directory) : ""};
  agent::WorkerEnvironmentOptions environment = scene.environment;
  environment.network = [](const std::string& addr) {  // doesn't ask the system
    const std::string whose = addr.starts_with('<') ? addr.substr(1) : addr + ">";
    const std::string interface = "<the interface of " + whose;
    return Environment{{env::kGlooInterface, interface}, {env::kTensorPipeInterface, interface}};
  };
  return agent::worker_environment(environment, round, local_rank, paths);
}

// Finds the variables that ddprun sets: those of a worker that inherits nothing, and inherited ones
// that are changed.
void WorkerForecaster::find_names(const membership::StartRound& round) {
  WorkerScene bare = scene_;
  bare.environment.inherited.clear();
  const Environment own = from_strings(variables(bare, round, 0));
  const Environment all = from_strings(variables(scene_, round, 0));
  const Environment inherited = std::exchange(scene_.environment.inherited, {});
  for (const auto& [name, value] : inherited) {
    const auto found = all.find(name);
    if (found == all.end()) removed_.push_back(name);
    const bool matters = found == all.end() || found->second != value || own.contains(name);
    if (matters) scene_.environment.inherited.emplace(name, value);
  }
  common_ = variables(scene_, round, 0);
}

void WorkerForecaster::find_later(const RoundKnowledge& knowledge,
                                  const membership::StartRound& round) {
  const auto compare_with = [&](const std::vector<std::string>& other, const std::string& decided) {
    const Environment others = from_strings(other);
    for (const auto& [name, value] : from_strings(common_)) {
      const auto found = others.find(name);
      if (found == others.end() || found->second != value) later_.emplace(name, decided);
    }
  };
  for (const OtherRound& other : other_rounds(knowledge, round)) {
    compare_with(variables(scene_, other.round, 0), other.decided);
  }
  WorkerScene other = scene_;
  if (other.environment.run_id.find('<') != std::string::npos) other.environment.run_id += kOther;
  if (!other.log_directory.empty()) other.log_directory += kOther;
  other.socket_directory += kOther;
  compare_with(variables(other, round, 0), "");
  const Environment common = from_strings(common_);
  for (const char* name : {env::kGlooInterface, env::kTensorPipeInterface}) {
    const auto interface = common.find(name);  // unless the user has set it
    if (interface != common.end() && interface->second.starts_with('<')) {
      later_.emplace(interface->first, "");
    }
  }
  if (!scene_.is_num_workers_known) {
    ++other.environment.num_workers;
    compare_with(variables(other, round, 0), "<number of workers>");
  }
}

ForecastVariable WorkerForecaster::as_known(const std::string& variable) const {
  ForecastVariable result;
  result.name = name_of(variable);
  result.value = variable.substr(result.name.size() + 1);
  const auto later = later_.find(result.name);
  if (later == later_.end()) return result;
  result.is_later = true;
  if (!later->second.empty()) result.value = later->second;
  return result;
}

std::vector<ForecastVariable> WorkerForecaster::common() const {
  std::vector<ForecastVariable> result;
  for (const std::string& variable : common_) result.push_back(as_known(variable));
  return result;
}

void WorkerForecaster::compare(const std::vector<std::string>& own, WorkerForecast& worker) const {
  std::vector<std::string> news;
  if (own.size() == common_.size()) {  // fast for 10,000 workers
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i] != common_[i]) news.push_back(own[i]);
    }
  } else {
    news = agent::environment_news(common_, own);
    for (const std::string& variable : common_) {
      const std::string begin = name_of(variable) + '=';
      const bool is_there = std::any_of(
          own.begin(), own.end(), [&](const std::string& each) { return each.starts_with(begin); });
      if (!is_there) worker.without.push_back(name_of(variable));
    }
  }
  for (const std::string& variable : news) {
    ForecastVariable changed = as_known(variable);
    const auto later = later_.find(changed.name);
    const bool says_the_same = later != later_.end() && !later->second.empty();
    if (!says_the_same) worker.environment.push_back(std::move(changed));
  }
}

std::vector<std::string> WorkerForecaster::files_of(int local_rank, int global_rank) const {
  std::vector<std::string> files;
  if (scene_.log_directory.empty()) return files;
  const agent::OutputScene scene{.several_workers = scene_.environment.num_workers > 1,
                                 .has_files = true};
  const agent::WorkerPlan plan = agent::plan_output(scene_.output, scene, local_rank, global_rank);
  for (const auto stream : {agent::OutputStream::kStdout, agent::OutputStream::kStderr}) {
    const agent::StreamPlan& way = plan.of(stream);
    if (way.file != agent::FileWay::kNone) {
      files.push_back(agent::LogTree::log_file(scene_.log_directory, local_rank, stream));
    }
    if (way.filtered) {
      files.push_back(agent::LogTree::filtered_file(scene_.log_directory, stream));
    }
  }
  return files;
}

std::vector<WorkerForecast> WorkerForecaster::workers(const membership::StartRound& round,
                                                      int num_workers) const {
  WorkerScene scene = scene_;
  if (scene.is_num_workers_known) scene.environment.num_workers = num_workers;
  std::vector<WorkerForecast> workers;
  for (int rank = 0; rank < num_workers; ++rank) {
    WorkerForecast& worker = workers.emplace_back();
    worker.local_rank = rank;
    const int global_rank = round.first_global_rank + rank;
    if (are_ranks_known_) worker.global_rank = global_rank;
    worker.command = agent::worker_arguments(scene.command, rank);
    compare(variables(scene, round, rank), worker);
    worker.files = files_of(rank, global_rank);
  }
  return workers;
}

}  // namespace ddprun::launcher
