// SPDX-License-Identifier: Apache-2.0
#include "launcher/gangs/gang_request.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "common/env_names.h"
#include "common/random_id.h"
#include "common/text.h"
#include "launcher/endpoint_discovery.h"
#include "launcher/hosts/fleet_plan.h"
#include "rendezvous/gangs/gang_json.h"

namespace ddprun::launcher {
namespace {

constexpr char kSwitch[] = "standing-agents";

// Each of these says how nodes meet, or means one node. If the switch was typed, too, it is
// refused.
constexpr std::array<const char*, 8> kOtherWays = {"standalone", "hosts",       "hostfile",
                                                   "node-rank",  "master-addr", "master-port",
                                                   "local-addr", "rdzv-id"};
// The agents have their own values of these.
constexpr std::array<std::string_view, 4> kOfAgents = {"token-file", "tls-ca", "tls-cert",
                                                       "tls-key"};

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

class GangPlanner {
 public:
  GangPlanner(const CommandLine& line, const Environment& environment, const GangOrigin& origin)
      : line_(line), config_(line.config), environment_(environment), origin_(origin) {}

  GangRequest plan() {
    for (const char* option : kOtherWays) {
      if (!line_.values.has(option)) continue;
      refuse(concat(line_.values.as_given(option),
                    ": has no effect where standing agents run the "
                    "job (--standing-agents): leave it out"));
    }
    find_queue();
    fill();
    if (result_.problems.empty()) check();
    return std::move(result_);
  }

 private:
  void refuse(const std::string& problem) { result_.problems.push_back(problem); }

  // Finds the queue where a job of several nodes would meet.
  void find_queue() {
    LaunchConfig config = config_;
    config.max_nodes = std::max(2, config.max_nodes);
    config.standalone = false;
    const DiscoveryInput input{.config = config,
                               .environment = environment_,
                               .files = line_.files,
                               .step = std::nullopt,
                               .user_id = static_cast<unsigned>(origin_.uid),
                               .random_id = origin_.random_id};
    const Discovery found = discover_endpoint(input);
    if (found.nothing_found) {
      return refuse(
          "--standing-agents: where is the ddprund? Give --rdzv-endpoint=HOST:PORT, or "
          "rdzv_endpoint in /etc/ddprun/ddprun.toml");
    }
    if (!found.plan) return refuse(found.problem);
    if (found.plan->mode != RendezvousMode::kElastic) {
      return refuse(concat("--standing-agents: ", found.plan->origin,
                           " is of a job with fixed ranks; give --rdzv-endpoint=HOST:PORT"));
    }
    result_.endpoints = found.plan->endpoints();
  }

  void fill() {
    gangs::GangSpec& spec = result_.spec;
    spec.id = concat(origin_.user.substr(0, 40), "-", origin_.random_id.substr(0, 12));
    spec.user = origin_.user;
    spec.uid = origin_.uid;
    spec.name = base_name(config_.program);
    spec.min_nodes = config_.min_nodes;
    spec.max_nodes = config_.max_nodes;
    spec.workers = config_.nproc_per_node;
    spec.directory = origin_.directory;
    spec.stop_ms = gangs::stop_ms_of(
        std::chrono::duration_cast<std::chrono::milliseconds>(config_.timeouts.shutdown));
    for (const auto& [name, value] : line_.values.of_any_machine()) {
      const bool is_agents = std::ranges::find(kOfAgents, name) != kOfAgents.end();
      if (is_forwarded_option(name) && !is_agents) {
        spec.arguments.push_back(concat("--", name, "=", value));
      }
    }
    if (const auto conf = line_.values.find("rdzv-conf"); conf != nullptr) {
      spec.arguments.push_back("--rdzv-conf=" + conf->text);
    }
    if (config_.spares > 0) {  // spares are further nodes
      spec.arguments.push_back(concat("--nnodes=", spec.min_nodes));
      if (spec.min_nodes != spec.max_nodes) spec.arguments.back() += concat(":", spec.max_nodes);
      spec.min_nodes += config_.spares;
      spec.max_nodes += config_.spares;
    }
    spec.arguments.emplace_back("--");
    spec.arguments.push_back(config_.program);
    spec.arguments.insert(spec.arguments.end(), config_.program_args.begin(),
                          config_.program_args.end());
    result_.notes =
        gangs::take_environment(forwarded_environment(environment_, config_.hosts.env), spec);
  }

  void check() {
    if (config_.output.stdin_rank) {
      refuse(concat(line_.values.as_given("stdin-rank"),
                    ": workers that standing agents run have no stdin (--standing-agents): leave "
                    "it out"));
    }
    const std::string wrong = gangs::check_submission(result_.spec, "--env=-NAME");
    if (!wrong.empty()) refuse(wrong);
  }

  const CommandLine& line_;
  const LaunchConfig& config_;
  const Environment& environment_;
  const GangOrigin& origin_;
  GangRequest result_;
};

}  // namespace

bool is_for_standing_agents(const CommandLine& line, const Environment& environment) {
  if (!line.config.standing_agents) return false;
  if (line.values.find(kSwitch)->origin == OptionValues::kCommandLine) return true;
  if (line.config.max_nodes == 1 || line.step) return false;
  for (const char* option : kOtherWays) {
    if (line.values.has(option)) return false;
  }
  for (const char* name : {env::kPetRdzvEndpoint, env::kPetMasterAddr}) {
    if (find_variable(environment, name)) return false;
  }
  return !line.values.has("rdzv-endpoint") && line.config.wanted_backend != "static";
}

GangRequest plan_gang(const CommandLine& line, const Environment& environment,
                      const GangOrigin& origin) {
  return GangPlanner(line, environment, origin).plan();
}

GangRequest prepare_gang(const CommandLine& line, const Environment& environment) {
  GangOrigin origin;
  const passwd* entry = ::getpwuid(::geteuid());
  if (entry != nullptr) origin.user = entry->pw_name;
  origin.uid = ::geteuid();
  origin.directory = working_directory(environment);
  origin.random_id = random_id();
  GangRequest request = plan_gang(line, environment, origin);
  if (origin.directory.empty()) {
    request.problems = {"the working directory is gone: start ddprun in one that is there"};
  }
  return request;
}

std::string gang_to_text(const GangRequest& request) {
  gangs::GangSpec spec = request.spec;
  for (std::string& variable : spec.environment) variable.resize(variable.find('='));
  return gangs::gang_to_json(spec) + "\n";
}

}  // namespace ddprun::launcher
