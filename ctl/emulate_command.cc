// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate_command.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "ctl/emulate/daemon_process.h"

namespace ddprun::ctl {
namespace {

constexpr int kMaxAgents = 100'000;
constexpr std::size_t kOtherDescriptors = 64;

void need_descriptors(int num_agents) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = static_cast<rlim_t>(num_agents) + kOtherDescriptors;
  if (limit.rlim_max < wanted) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("--agents: ", num_agents, " agents need ", wanted,
                       " open files, the hard limit is ", limit.rlim_max, " (ulimit -Hn)"));
  }
  limit.rlim_cur = std::max(limit.rlim_cur, wanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void print_row(const char* what, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  std::printf("%-52s %8.0f ms", what, sorted[sorted.size() / 2] * 1e3);
  if (sorted.size() > 1) {
    std::printf("  (median of %zu, longest %.0f ms)", sorted.size(), sorted.back() * 1e3);
  }
  std::printf("\n");
}

void print_table(const EmulationOptions& options, const EmulationTimes& times) {
  std::printf("%d agents × %d workers, seed %llu\n", options.num_agents,
              options.num_workers_per_node, static_cast<unsigned long long>(options.seed));
  print_row("first join → every member told its ranks", {times.join});
  print_row("a worker fails → every agent told", times.failure_told);
  print_row("a worker fails → all run again", times.failure_running);
  print_row("a node vanishes → every other agent told", times.loss_told);
  print_row("a node vanishes → all run again", times.loss_running);
  print_row("last worker done → every agent has left", {times.end});
  if (times.daemon_bytes_per_agent > 0) {
    std::printf("%-52s %8.1f KB\n", "the rendezvous' memory per agent",
                times.daemon_bytes_per_agent / 1e3);
  }
}

boost::json::array milliseconds_of(const std::vector<double>& seconds) {
  boost::json::array array;
  for (const double value : seconds) array.push_back(value * 1e3);
  return array;
}

void print_json(const EmulationOptions& options, const EmulationTimes& times) {
  boost::json::object object;
  object["agents"] = options.num_agents;
  object["workers_per_node"] = options.num_workers_per_node;
  object["seed"] = options.seed;
  object["join_ms"] = times.join * 1e3;
  object["failure_told_ms"] = milliseconds_of(times.failure_told);
  object["failure_running_ms"] = milliseconds_of(times.failure_running);
  object["loss_told_ms"] = milliseconds_of(times.loss_told);
  object["loss_running_ms"] = milliseconds_of(times.loss_running);
  object["end_ms"] = times.end * 1e3;
  if (times.daemon_bytes_per_agent > 0) {
    object["daemon_bytes_per_agent"] = times.daemon_bytes_per_agent;
  }
  std::printf("%s\n", boost::json::serialize(object).c_str());
}

}  // namespace

EmulateCommand::EmulateCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "emulate", "thousands of nodes against a real rendezvous: how long things take")) {
  command_->add_option("--agents", options_.num_agents, "Nodes of the job")
      ->check(CLI::Range(1, kMaxAgents))
      ->capture_default_str();
  command_->add_option("--nproc-per-node", options_.num_workers_per_node, "Workers of each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command_->add_option("--failures", options_.num_failures, "Workers that fail, one by one")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  command_->add_option("--losses", options_.num_losses, "Nodes that vanish; each has a spare")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  command_->add_option("--seed", options_.seed, "Which ones")->capture_default_str();
  command_
      ->add_option("--spawn-time", spawn_seconds_,
                   "Seconds that a node takes at most to start or stop its workers")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command_->add_option("--time-limit", limit_seconds_, "Seconds until it gives up")
      ->check(CLI::Range(1.0, 86'400.0))
      ->capture_default_str();
  command_->add_option("--rdzv-endpoint", endpoint_,
                       "HOST:PORT of a rendezvous that runs (default: a ddprund of its own)");
  command_->add_flag("--json", json_, "One JSON object instead of the table");
}

void EmulateCommand::run() {
  using std::chrono::milliseconds;
  need_descriptors(options_.num_agents + options_.num_losses);
  options_.max_spawn_time = milliseconds(static_cast<std::int64_t>(spawn_seconds_ * 1e3));
  options_.time_limit = milliseconds(static_cast<std::int64_t>(limit_seconds_ * 1e3));
  std::optional<DaemonProcess> daemon;
  if (endpoint_.empty()) {
    daemon.emplace();
    options_.endpoint = daemon->endpoint();
    options_.daemon_pid = daemon->pid();
  } else {
    const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
    if (!endpoint || endpoint->host.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--rdzv-endpoint=" + endpoint_ + ": wants HOST or HOST:PORT");
    }
    options_.endpoint = *endpoint;
  }
  const EmulationTimes times = Emulation(options_).run();
  json_ ? print_json(options_, times) : print_table(options_, times);
}

}  // namespace ddprun::ctl
