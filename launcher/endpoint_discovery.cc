// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_discovery.h"

#include <cstdio>
#include <cstring>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/fnv1a.h"
#include "common/shell_words.h"
#include "common/text.h"

namespace ddprun::launcher {
namespace {

// torchrun's id with fixed ranks. Address and port belong to one job, so the commands may differ.
constexpr char kStaticJobId[] = "none";
constexpr char kTorchrunsMasterAddr[] = "127.0.0.1";  // if no other is given

std::string job_id(const DiscoveryInput& input, RendezvousMode mode) {
  const LaunchConfig& config = input.config;
  if (!config.rdzv_id.empty()) return config.rdzv_id;
  for (const char* name : {env::kRdzvId, env::kPetRdzvId}) {
    if (const auto id = find_variable(input.environment, name)) return *id;
  }
  if (mode == RendezvousMode::kLocal) return input.random_id;
  if (mode == RendezvousMode::kStatic) return kStaticJobId;
  if (input.step) return input.step->job_id;
  std::string command = config.program;
  for (const std::string& arg : config.program_args) command.append(1, '\0') += arg;
  command.append(1, '\0') += concat(config.min_nodes, ":", config.max_nodes);
  char text[32];
  std::snprintf(text, sizeof text, "%u-%012llx", input.user_id,
                static_cast<unsigned long long>(fnv1a(command) & 0xffffffffffffu));
  return text;
}

bool is_true(const std::string& value) {
  return value == "1" || std::strchr("tTyY", value.empty() ? '-' : value.front()) != nullptr;
}

class Finder {
 public:
  explicit Finder(const DiscoveryInput& input) : input_(input) {}

  Discovery find() {
    const LaunchConfig& config = input_.config;
    const bool alone = config.max_nodes == 1;
    const bool found = config.standalone ? take_local("--standalone")
                       : from_flags() || from_environment()
                           ? true
                           : (alone ? take_local("--nnodes=1")
                                    : from_scheduler() || from_files() || from_node_rank());
    if (!found) result_.nothing_found = true;
    if (result_.plan) {
      RendezvousPlan& plan = *result_.plan;
      const auto told = config.rdzv_conf.find("is_host");
      if (plan.mode != RendezvousMode::kLocal && told != config.rdzv_conf.end()) {
        plan.is_host = is_true(told->second);
      }
      if (result_.problem.empty()) result_.problem = problem_with_any_address();
      plan.job_id = job_id(input_, plan.mode);
      plan.node_rank = plan.mode == RendezvousMode::kLocal ? std::optional(0) : node_rank();
    }
    if (!result_.problem.empty()) result_.plan.reset();
    return std::move(result_);
  }

 private:
  bool take_local(const char* origin) {
    RendezvousPlan& plan = result_.plan.emplace();
    plan.endpoint = {.host = "127.0.0.1", .port = 0};
    plan.origin = origin;
    plan.is_host = true;
    return true;
  }

  // The scheduler's order of nodes counts if exactly these nodes run one ddprun each.
  std::optional<int> node_rank() const {
    const LaunchConfig& config = input_.config;
    if (config.node_rank) return config.node_rank;
    if (!input_.step || !input_.step->one_each) return std::nullopt;
    const bool is_told = input_.step->num_hosts > 0;
    const bool are_these = is_told ? input_.step->num_hosts == config.max_nodes
                                   : config.min_nodes == config.max_nodes && config.spares == 0;
    if (!are_these || input_.step->node_index.value_or(0) >= config.max_nodes) return std::nullopt;
    return input_.step->node_index;
  }

  // Returns whether `text` decides, with a plan or a problem.
  bool take(RendezvousMode mode, const std::string& text, std::uint16_t default_port,
            const std::string& origin) {
    auto [endpoints, problem] = parse_endpoints(text, default_port);
    if (problem.empty() && endpoints.size() > 1) problem = problem_with_several(mode);
    if (!problem.empty()) {
      result_.problem = concat(origin, ": \"", text, "\": ", problem);
      return true;
    }
    RendezvousPlan& plan = result_.plan.emplace();
    plan.mode = mode;
    plan.endpoint = endpoints.front();
    plan.others.assign(endpoints.begin() + 1, endpoints.end());
    plan.origin = origin;
    if (!plan.others.empty()) plan.is_host = false;
    if (mode == RendezvousMode::kStatic) decide_static_owner();
    return true;
  }

  // Several endpoints must be ddprunds'. The result completes "ORIGIN: "TEXT": ". Empty: no
  // problem.
  std::string problem_with_several(RendezvousMode mode) const {
    const LaunchConfig& config = input_.config;
    if (mode == RendezvousMode::kStatic) {
      return "has several endpoints, but with fixed ranks (--rdzv-backend=static) the nodes meet "
             "at one, node rank 0's";
    }
    const auto told = config.rdzv_conf.find("is_host");
    if (told != config.rdzv_conf.end() && is_true(told->second)) {
      return "has several endpoints, each of a ddprund, so that no node serves: leave "
             "--rdzv-conf=is_host out";
    }
    return "";
  }

  // A node that doesn't serve would connect to itself. Nodes that look at their interfaces for the
  // endpoint refuse such an address themselves. Empty: no problem.
  std::string problem_with_any_address() const {
    const RendezvousPlan& plan = *result_.plan;
    if (plan.is_host != false || input_.config.max_nodes == 1) return "";
    for (const Endpoint& each : plan.endpoints()) {
      if (!names_any_address(each.host)) continue;
      const bool is_static = plan.mode == RendezvousMode::kStatic;
      const bool is_master = is_static && plan.origin != "--rdzv-endpoint";
      return concat(to_string(each), " (", plan.origin,
                    "): no node reaches another one at that address: give the name or address of ",
                    is_static ? "node rank 0" : "the node that serves", ", as in ",
                    is_master ? "--master-addr=HOST" : concat("--rdzv-endpoint=HOST:", each.port));
    }
    return "";
  }

  // Static mode: node rank 0 serves, whatever its addresses are.
  void decide_static_owner() {
    const LaunchConfig& config = input_.config;
    const std::optional<int> rank = node_rank();
    if (!rank && config.max_nodes > 1) {
      result_.problem = "--node-rank: each node needs its own (0 to " +
                        std::to_string(config.max_nodes - 1) + ") with " + result_.plan->origin;
      return;
    }
    result_.plan->is_host = rank.value_or(0) == 0;
  }

  // Takes an endpoint from a flag or variable. With --rdzv-backend=static it is rank 0's address.
  bool take_endpoint(const std::string& text, const std::string& origin) {
    const LaunchConfig& config = input_.config;
    if (config.wanted_backend != "static") {
      return take(RendezvousMode::kElastic, text, kDefaultRendezvousPort, origin);
    }
    const std::uint16_t port = config.master_port.value_or(kDefaultMasterPort);
    return take(RendezvousMode::kStatic, text, port, origin);
  }

  bool from_flags() {
    const LaunchConfig& config = input_.config;
    const std::uint16_t master_port = config.master_port.value_or(kDefaultMasterPort);
    if (!config.rdzv_endpoint.empty())
      return take_endpoint(config.rdzv_endpoint, "--rdzv-endpoint");
    if (!config.master_addr.empty()) {
      return take_master(config.master_addr, master_port, "--master-addr");
    }
    if (config.master_port && config.max_nodes == 1) {
      return take_master(kTorchrunsMasterAddr, master_port, "--master-port");
    }
    return false;
  }

  bool from_environment() {
    for (const char* name : {env::kRdzvEndpoint, env::kPetRdzvEndpoint}) {
      if (const auto text = find_variable(input_.environment, name)) {
        return take_endpoint(*text, name);
      }
    }
    const auto address = find_variable(input_.environment, env::kPetMasterAddr);
    const bool alone = input_.config.max_nodes == 1;
    const bool has_port = find_variable(input_.environment, env::kPetMasterPort).has_value();
    if (!address && !(alone && has_port)) return false;
    const auto port = master_port();
    if (!port) return true;  // it set a problem
    if (!address) return take_master(kTorchrunsMasterAddr, *port, env::kPetMasterPort);
    return take_master(*address, *port, env::kPetMasterAddr);
  }

  // Takes torchrun's defaults for a node that only gets its rank: nodes on one machine.
  bool from_node_rank() {
    const LaunchConfig& config = input_.config;
    if (!config.node_rank || config.wanted_backend == "c10d") return false;
    const auto port = master_port();
    if (!port) return true;  // it set a problem
    take_master(kTorchrunsMasterAddr, *port, "--node-rank without --master-addr");
    result_.note = concat("no --master-addr: the nodes meet at ", kTorchrunsMasterAddr, ":", *port,
                          ", on this machine only");
    return true;
  }

  // nullopt: it set a problem.
  std::optional<std::uint16_t> master_port() {
    const auto typed = input_.config.master_port;
    const auto text = find_variable(input_.environment, env::kPetMasterPort);
    if (typed || !text) return typed.value_or(kDefaultMasterPort);
    const auto parsed = parse_endpoint("x:" + *text, 0);
    if (parsed) return parsed->port;
    result_.problem = std::string(env::kPetMasterPort) + ": \"" + *text + "\" is no port";
    return std::nullopt;
  }

  // The value of --master-addr is only a host, so an IPv6 address needs no brackets.
  bool take_master(const std::string& host, std::uint16_t port, const std::string& origin) {
    return take(RendezvousMode::kStatic, to_string(Endpoint{.host = host, .port = port}), port,
                origin);
  }

  bool from_scheduler() {
    if (!input_.step) return false;
    const SchedulerStep& step = *input_.step;
    if (!step.problem.empty()) {
      result_.looked_at.push_back(step.problem);
      return false;
    }
    if (step.num_hosts > 0 && step.num_hosts < input_.config.min_nodes) {
      result_.looked_at.push_back(
          concat("the ", step.name, " has only ", step.num_hosts, " node(s)"));
      return false;
    }
    if (input_.config.wanted_backend == "static") {
      const std::uint16_t port = input_.config.master_port.value_or(step.port);
      return take(RendezvousMode::kStatic, step.first_host, port, step.name);
    }
    take(RendezvousMode::kElastic, step.first_host, step.port, step.name);
    if (step.node_index && result_.plan) result_.plan->is_host = *step.node_index == 0;
    return true;
  }

  bool from_files() {
    for (const ConfigFile& file : input_.files) {
      if (!file.rdzv_endpoint.empty()) return take_endpoint(file.rdzv_endpoint, file.path);
      if (!file.hosts.empty()) return take_endpoint(file.hosts.front(), file.path);
    }
    return false;
  }

  const DiscoveryInput& input_;
  Discovery result_;
};

}  // namespace

std::vector<Endpoint> RendezvousPlan::endpoints() const {
  std::vector<Endpoint> all = {endpoint};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Discovery discover_endpoint(const DiscoveryInput& input) { return Finder(input).find(); }

std::string no_endpoint_message(const LaunchConfig& config, const std::string& address,
                                const std::vector<std::string>& looked_at) {
  const std::string endpoint = to_string(Endpoint{.host = address, .port = kDefaultRendezvousPort});
  std::string line = "ddprun --rdzv-endpoint=" + endpoint;
  for (const std::string& word : config.typed) line.append(1, ' ').append(shell_quoted(word));
  std::string text = "ddprun: --nnodes=" + std::to_string(config.max_nodes) +
                     " needs a place where the nodes meet, and none was given. "
                     "Paste this on each node:\n\n    " +
                     line +
                     "\n\n"
                     "(this host, " +
                     address +
                     ", then serves the rendezvous), or set "
                     "DDPRUN_RDZV_ENDPOINT, or write\nrdzv_endpoint = \"" +
                     endpoint +
                     "\" to ~/.config/ddprun/ddprun.toml or /etc/ddprun/ddprun.toml,\n"
                     "or start it with srun.\n";
  for (const std::string& reason : looked_at) text += "Not used: " + reason + ".\n";
  return text;
}

}  // namespace ddprun::launcher
