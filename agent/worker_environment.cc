// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_environment.h"

#include <algorithm>
#include <array>
#include <map>
#include <type_traits>

#include "common/env_names.h"
#include "common/text.h"

namespace ddprun::agent {

std::vector<std::string> worker_arguments(const WorkerCommand& command, int local_rank) {
  const auto dollars =
      command.dollars_are_doubled ? DoubleDollar::kBecomesOne : DoubleDollar::kStays;
  std::vector<std::string> result = command.argv;
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i] =
        safe_substitute(command.argv[i], {{"local_rank", std::to_string(local_rank)}}, dollars);
  }
  return result;
}

std::vector<std::string> worker_environment(const WorkerEnvironmentOptions& options,
                                            const membership::StartRound& round, int local_rank,
                                            const WorkerPaths& paths) {
  Environment result = options.inherited;
  const auto set = [&result](const char* name, const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      result[name] = std::to_string(value);
    } else {
      result[name] = value;
    }
  };
  const auto set_default = [&result](const std::string& name, const std::string& value) {
    result.emplace(name, value);
  };
  // Removes an inherited value, too: an agent around this one may have set it for this process.
  const auto set_path = [&result](const char* name, const std::string& path) {
    if (path.empty()) {
      result.erase(name);
    } else {
      result[name] = path;
    }
  };
  const int global_rank = round.first_global_rank + local_rank;

  set(env::kRank, global_rank);
  set(env::kLocalRank, local_rank);
  set_path(env::kTrueLocalRank, "");
  if (!options.devices.empty()) {
    const std::string& device = options.devices.at(static_cast<std::size_t>(local_rank));
    set(env::kLocalRank, 0);
    set(env::kTrueLocalRank, local_rank);
    set(env::kCudaVisibleDevices, device);
    if (result.contains(env::kHipVisibleDevices)) set(env::kHipVisibleDevices, device);
  }
  set(env::kGroupRank, round.node_rank);
  set(env::kRoleRank, round.first_role_rank + local_rank);
  set(env::kRoleName, options.role);
  set(env::kWorldSize, round.world_size);
  set(env::kLocalWorldSize, options.num_workers);
  set(env::kGroupWorldSize, round.num_nodes);
  set(env::kRoleWorldSize, round.role_world_size);
  set(env::kMasterAddr, round.master_addr);
  set(env::kMasterPort, round.master_port);
  set(env::kRestartCount, round.restart_count);
  set(env::kMaxRestarts, options.max_restarts);
  set(env::kRunId, options.run_id);
  set(env::kUseAgentStore, "True");  // so rank 0 opens no server of its own
  set(env::kSignalsToHandle, options.signals_to_handle);
  set_path(env::kErrorFile, paths.error_file);
  if (!paths.timer_file.empty()) set(env::kTimerFile, paths.timer_file);
  set_default(env::kNcclAsyncErrorHandling, "1");
  if (options.num_workers > 1) set_default(env::kOmpNumThreads, "1");

  set(env::kRound, round.round);
  set(env::kNodeAddr, round.node_addr);
  set(env::kMasterNodeAddr, round.master_node_addr);
  if (round.num_nodes > 1 && options.network) {
    for (const auto& [name, value] : options.network(round.node_addr)) set_default(name, value);
  }
  set_path(env::kAgentSocket, paths.agent_socket);
  if (!paths.observer.empty()) {
    const std::string users = find_variable(result, env::kPythonPath).value_or("");
    set(env::kPythonPath, users.empty() ? paths.observer : concat(paths.observer, ":", users));
  }
  if (options.recovers_in_place) {
    set(env::kRecovery, "inplace");
  } else {
    set_path(env::kRecovery, "");
  }
  if (options.terminal_columns && options.num_workers > 1) {
    set(env::kTerminalColumns, *options.terminal_columns);
  }
  return to_strings(result);
}

namespace {

constexpr std::array kOfAPlace = {env::kRank,
                                  env::kGroupRank,
                                  env::kRoleRank,
                                  env::kWorldSize,
                                  env::kGroupWorldSize,
                                  env::kRoleWorldSize,
                                  env::kMasterAddr,
                                  env::kMasterPort,
                                  env::kRestartCount,
                                  env::kNodeAddr,
                                  env::kMasterNodeAddr,
                                  env::kGlooInterface,
                                  env::kTensorPipeInterface,
                                  env::kNcclInterface};

constexpr std::array kInterfaces = {env::kGlooInterface, env::kTensorPipeInterface,
                                    env::kNcclInterface};

bool is_one_of(const auto& names, const std::string& variable) {
  const std::string name = variable.substr(0, variable.find('='));
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<std::string> parked_environment(const WorkerEnvironmentOptions& options, int local_rank,
                                            const std::string& agent_socket,
                                            const std::string& observer) {
  std::vector<std::string> variables =
      worker_environment(options, membership::StartRound{}, local_rank,
                         {.error_file = "", .agent_socket = agent_socket, .observer = observer});
  std::erase_if(variables, [](const auto& variable) { return is_one_of(kOfAPlace, variable); });
  return variables;
}

std::vector<std::string> place_variables(const WorkerEnvironmentOptions& options,
                                         const membership::StartRound& round, int index,
                                         int num_left, int local_rank) {
  WorkerEnvironmentOptions left = options;
  std::erase_if(left.inherited, [](const auto& each) {  // except the user's own choice for a place
    return !is_one_of(kInterfaces, each.first);
  });
  left.num_workers = num_left;
  left.devices.clear();
  std::vector<std::string> variables =
      worker_environment(left, round, index, {.error_file = "", .agent_socket = ""});
  constexpr std::array kOfThisNode = {env::kRound, env::kLocalRank, env::kLocalWorldSize};
  std::erase_if(variables, [&](const auto& variable) {
    return !is_one_of(kOfAPlace, variable) && !is_one_of(kOfThisNode, variable);
  });
  variables.push_back(concat(env::kTrueLocalRank, "=", local_rank));
  return variables;
}

std::vector<std::string> environment_news(const std::vector<std::string>& before,
                                          const std::vector<std::string>& now) {
  std::vector<std::string> news;
  for (const std::string& variable : now) {
    if (std::find(before.begin(), before.end(), variable) == before.end()) news.push_back(variable);
  }
  return news;
}

Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses) {
  std::map<std::string, std::string> first_address;  // by interface
  std::string own;
  bool has_infiniband = false;
  std::vector<std::string> ruled_out{"docker", "lo"};  // NCCL leaves these out by itself
  const std::size_t num_known = ruled_out.size();
  for (const InterfaceAddress& each : addresses) {
    const std::string address = each.address.host_text();
    first_address.emplace(each.interface, address);
    if (address == node_addr) own = each.interface;
    if (!each.is_up) continue;
    has_infiniband = has_infiniband || each.interface.starts_with("ib");
    const std::string kind = virtual_kind(each.interface);
    const bool is_new = std::find(ruled_out.begin(), ruled_out.end(), kind) == ruled_out.end();
    if (!kind.empty() && is_new) ruled_out.push_back(kind);
  }
  Environment variables;
  if (own.empty()) return variables;
  if (first_address[own] == node_addr) {
    variables[env::kGlooInterface] = variables[env::kTensorPipeInterface] = own;
  }
  const bool takes_virtual_ones = ruled_out.size() > num_known && !has_infiniband;
  if (!takes_virtual_ones || is_virtual_interface(own)) return variables;
  std::string others = "^";
  for (const std::string& each : ruled_out) others += (others.size() > 1 ? "," : "") + each;
  variables[env::kNcclInterface] = others;
  return variables;
}

Environment network_variables(const std::string& node_addr) {
  return network_variables(node_addr, interface_addresses());
}

}  // namespace ddprun::agent
