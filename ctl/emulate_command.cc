// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate_command.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "ctl/emulate/daemon_process.h"
#include "ctl/emulate_report.h"
#include "ctl/number_between.h"
#include "ctl/standard_output.h"

namespace ddprun::ctl {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxAgents = 100'000;
constexpr int kMaxFaults = 10'000;
constexpr std::size_t kOtherDescriptors = 64;
constexpr int kPerRelay = 4;  // a listener, and both ends of what goes through it
constexpr double kDefaultDuration = 60;
constexpr double kDefaultLimit = 120;
constexpr double kVirtualLimit = 4 * 3600;  // virtual time costs little

milliseconds from_seconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

void need_descriptors(const EmulationOptions& options) {
  const int num_hosts = options.num_agents + options.num_losses;
  const int num_relays =
      std::min(num_hosts, options.num_slow_nodes + options.num_partitions * (1 + num_hosts / 10));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = static_cast<rlim_t>(num_hosts + kPerRelay * num_relays) + kOtherDescriptors;
  if (limit.rlim_max < wanted) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("--agents: ", options.num_agents, " agents need ", wanted,
                       " open files, the hard limit is ", limit.rlim_max,
                       " (ulimit -Hn); --virtual-time needs none"));
  }
  limit.rlim_cur = std::max(limit.rlim_cur, wanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

EmulateCommand::EmulateCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "emulate",
          "thousands of nodes against a rendezvous: what must be true, and how long "
          "things take (docs/emulate.md)")) {
  command_->add_option("--agents", options_.num_agents, "Nodes of the job")
      ->check(CLI::Range(1, kMaxAgents))
      ->capture_default_str();
  command_->add_option("--nproc-per-node", options_.num_workers_per_node, "Workers of each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command_->add_option("--seed", options_.seed, "What is random follows from it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command_->add_flag("--virtual-time", options_.virtual_time,
                     "The rendezvous' machine in this process, a simulated network, no clock: "
                     "hours pass in seconds, and a run can be repeated exactly");
  command_
      ->add_option("--failures", options_.num_failures,
                   "Workers that fail, one after the other; the times are taken")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  command_
      ->add_option("--losses", options_.num_losses, "Nodes that vanish, likewise; each has a spare")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  add_faults();
  command_
      ->add_option("--spawn-time", spawn_seconds_,
                   "Seconds that a node takes at most to start or stop its workers")
      ->check(number_between(0, 3600))
      ->capture_default_str();
  command_->add_option("--keep-alive", keep_alive_seconds_, "The job's keep-alive time, in seconds")
      ->check(number_between(0.1, 3600))
      ->capture_default_str();
  command_
      ->add_option("--time-limit", limit_seconds_,
                   "Seconds until it gives up (default: 120; 4 h of virtual time), after "
                   "--duration")
      ->check(number_between(1, 1e6));
  command_->add_option("--rdzv-endpoint", endpoint_,
                       "HOST:PORT of a rendezvous that runs (default: a ddprund of its own)");
  command_->add_flag("--json", json_, "One JSON object instead of the table");
  command_->add_option("--plant", plant_)->group("");  // of the tests
}

void EmulateCommand::add_faults() {
  command_
      ->add_option("--kills", options_.num_kills,
                   "Workers, agents and hosts that are killed at random moments of --duration")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  command_
      ->add_option("--partitions", options_.num_partitions,
                   "How often up to a tenth of the nodes can't be reached for a while, likewise")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  command_
      ->add_option("--slow-nodes", options_.num_slow_nodes,
                   "Nodes that join late, answer late, start and stop slowly")
      ->check(CLI::Range(0, kMaxAgents))
      ->capture_default_str();
  command_
      ->add_option("--duration", duration_seconds_,
                   "Seconds in which these faults happen (default: 60 where there are any)")
      ->check(number_between(0, 1e6));
  command_
      ->add_option("--min-agents", options_.min_agents,
                   "Smallest round (default: 1 where faults are random, else --agents)")
      ->check(CLI::Range(1, kMaxAgents));
  command_->add_option("--max-restarts", options_.max_restarts, "The job's (default: enough)")
      ->check(CLI::Range(0, 1'000'000));
  command_->add_option("--max-node-losses", options_.max_node_losses, "Likewise")
      ->check(CLI::Range(0, 1'000'000));
}

void EmulateCommand::check() {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); };
  if (options_.num_slow_nodes > options_.num_agents) {
    throw bad(concat("--slow-nodes=", options_.num_slow_nodes, ": there are ", options_.num_agents,
                     " agents"));
  }
  if (options_.min_agents > options_.num_agents) {
    throw bad(concat("--min-agents=", options_.min_agents, ": there are ", options_.num_agents,
                     " agents"));
  }
  const bool any = options_.num_kills + options_.num_partitions > 0;
  if (any && duration_seconds_ && *duration_seconds_ == 0) {
    throw bad("--duration=0: --kills and --partitions need time to happen in");
  }
  if (options_.virtual_time && !endpoint_.empty()) {
    throw bad("--rdzv-endpoint: with --virtual-time the rendezvous is in this process");
  }
  if (!plant_.empty()) {
    const auto plant = plant_named(plant_);
    if (!plant) throw bad("--plant=" + plant_ + ": there is none");
    if (!options_.virtual_time) throw bad("--plant: needs --virtual-time");
    options_.plant = *plant;
  }
  options_.duration = from_seconds(duration_seconds_.value_or(any ? kDefaultDuration : 0));
  options_.max_spawn_time = from_seconds(spawn_seconds_);
  options_.keep_alive = from_seconds(keep_alive_seconds_);
  options_.time_limit =
      options_.duration +
      from_seconds(limit_seconds_.value_or(options_.virtual_time ? kVirtualLimit : kDefaultLimit));
}

EmulationResult EmulateCommand::in_real_time() {
  need_descriptors(options_);
  std::optional<DaemonProcess> daemon;
  if (endpoint_.empty()) {
    daemon.emplace();
    options_.endpoint = daemon->endpoint();
    options_.daemon_pid = daemon->pid();
  } else {
    const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
    if (!endpoint || endpoint->host.empty() || endpoint->port == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--rdzv-endpoint=" + endpoint_ + ": wants HOST or HOST:PORT of a ddprund");
    }
    options_.endpoint = *endpoint;
  }
  return Emulation(options_).run();
}

ExitCode EmulateCommand::run() {
  check();
  const EmulationResult result = options_.virtual_time ? Emulation(options_).run() : in_real_time();
  if (result.violation) {
    print_violation(options_, result, repeat());
    return ExitCode::kInternal;
  }
  json_ ? print_json(options_, result) : print_table(options_, result);
  return static_cast<ExitCode>(print_or_tell(""));  // what stdio has not written yet
}

// Every flag that has a say in what happens.
std::string EmulateCommand::repeat() const {
  std::string text = "ddprunctl emulate";
  for (const CLI::Option* option : command_->get_options()) {
    const std::string& name = option->get_lnames().front();
    if (option->count() == 0 || name == "seed") continue;
    text += " --" + name;
    if (option->get_items_expected_max() > 0) text += "=" + option->results().front();
  }
  return concat(text, " --seed=", options_.seed);
}

}  // namespace ddprun::ctl
