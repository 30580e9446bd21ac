// SPDX-License-Identifier: Apache-2.0
// fleet_load: thousands of emulated agents against a real ddprund (README.md here). Flags in, a
// table or one JSON object out. Exit code 70: an invariant was violated.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "bench/fleet/daemon_process.h"
#include "bench/fleet/emulation.h"
#include "bench/fleet/report.h"
#include "common/ending.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/text.h"
#include "ctl/number_between.h"

namespace ddprun::bench {
namespace {

using ctl::number_between;
using std::chrono::milliseconds;

constexpr int kMaxAgents = 100'000;
constexpr int kMaxFaults = 10'000;
constexpr std::size_t kOtherDescriptors = 64;
constexpr int kPerRelay = 4;  // a listener, and both ends of what goes through it
constexpr double kDefaultDuration = 60;

struct Flags {
  EmulationOptions options;
  std::string endpoint;
  double spawn_seconds = 0, keep_alive_seconds = 5, limit_seconds = 120;
  std::optional<double> duration_seconds;
  bool json = false;
};

milliseconds from_seconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

void add_faults(CLI::App& app, Flags& flags) {
  EmulationOptions& options = flags.options;
  app.add_option("--failures", options.num_failures,
                 "Workers that fail, one after the other; timed")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  app.add_option("--losses", options.num_losses, "Nodes that vanish, likewise; each has a spare")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  app.add_option("--kills", options.num_kills,
                 "Workers and agents that are killed at random moments of --duration")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  app.add_option("--partitions", options.num_partitions,
                 "How often up to a tenth of the nodes can't be reached for a while, likewise")
      ->check(CLI::Range(0, kMaxFaults))
      ->capture_default_str();
  app.add_option("--slow-nodes", options.num_slow_nodes,
                 "Nodes that join late, answer late, start and stop slowly")
      ->check(CLI::Range(0, kMaxAgents))
      ->capture_default_str();
  app.add_option("--duration", flags.duration_seconds,
                 "Seconds in which these faults happen (default: 60 where there are any)")
      ->check(number_between(0, 1e6));
}

void add_flags(CLI::App& app, Flags& flags) {
  EmulationOptions& options = flags.options;
  app.add_option("--agents", options.num_agents, "Nodes of the job")
      ->check(CLI::Range(1, kMaxAgents))
      ->capture_default_str();
  app.add_option("--nproc-per-node", options.num_workers_per_node, "Workers of each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "The plan of faults follows from it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_faults(app, flags);
  app.add_option("--spawn-time", flags.spawn_seconds,
                 "Seconds that a node takes at most to start or stop its workers")
      ->check(number_between(0, 3600))
      ->capture_default_str();
  app.add_option("--keep-alive", flags.keep_alive_seconds, "The job's keep-alive time, in seconds")
      ->check(number_between(0.1, 3600))
      ->capture_default_str();
  app.add_option("--time-limit", flags.limit_seconds, "Seconds until it gives up, after --duration")
      ->check(number_between(1, 1e6))
      ->capture_default_str();
  app.add_option("--rdzv-endpoint", flags.endpoint,
                 "HOST:PORT of a rendezvous that runs (default: a ddprund of its own)");
  app.add_flag("--json", flags.json, "One JSON object instead of the table");
}

Error bad(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

void settle(Flags& flags) {
  EmulationOptions& options = flags.options;
  if (options.num_slow_nodes > options.num_agents) {
    throw bad(concat("--slow-nodes=", options.num_slow_nodes, ": there are ", options.num_agents,
                     " agents"));
  }
  const bool any = options.num_kills + options.num_partitions > 0;
  if (any && flags.duration_seconds && *flags.duration_seconds == 0) {
    throw bad("--duration=0: --kills and --partitions need time to happen in");
  }
  options.duration = from_seconds(flags.duration_seconds.value_or(any ? kDefaultDuration : 0));
  options.max_spawn_time = from_seconds(flags.spawn_seconds);
  options.keep_alive = from_seconds(flags.keep_alive_seconds);
  options.time_limit = options.duration + from_seconds(flags.limit_seconds);
}

void need_descriptors(const EmulationOptions& options) {
  const int num_hosts = options.num_agents + options.num_losses;
  const int num_relays =
      std::min(num_hosts, options.num_slow_nodes + options.num_partitions * (1 + num_hosts / 10));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = static_cast<rlim_t>(num_hosts + kPerRelay * num_relays) + kOtherDescriptors;
  if (limit.rlim_max < wanted) {
    throw bad(concat("--agents: ", options.num_agents, " agents need ", wanted,
                     " open files, the hard limit is ", limit.rlim_max, " (ulimit -Hn)"));
  }
  limit.rlim_cur = std::max(limit.rlim_cur, wanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

ExitCode run(Flags& flags) {
  settle(flags);
  need_descriptors(flags.options);
  std::optional<DaemonProcess> daemon;
  if (flags.endpoint.empty()) {
    daemon.emplace();
    flags.options.endpoint = daemon->endpoint();
    flags.options.daemon_pid = daemon->pid();
  } else {
    const auto endpoint = parse_endpoint(flags.endpoint, kDefaultRendezvousPort);
    if (!endpoint || endpoint->host.empty() || endpoint->port == 0) {
      throw bad("--rdzv-endpoint=" + flags.endpoint + ": wants HOST or HOST:PORT of a ddprund");
    }
    flags.options.endpoint = *endpoint;
  }
  const EmulationResult result = Emulation(flags.options).run();
  if (result.violation) {
    print_violation(flags.options, result);
    return ExitCode::kInternal;
  }
  flags.json ? print_json(flags.options, result) : print_table(flags.options, result);
  return ExitCode::kOk;
}

int fail(const std::string& message, ExitCode code) {
  std::fprintf(stderr, "fleet_load: %s\n", one_line(message).c_str());
  return static_cast<int>(code);
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  using namespace ddprun;
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("fleet_load: thousands of emulated agents against a real ddprund", "fleet_load");
  bench::Flags flags;
  bench::add_flags(app, flags);
  try {
    app.parse(argc, argv);
    return static_cast<int>(bench::run(flags));
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return bench::fail(error.what(), ExitCode::kUsage);
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return bench::fail(ending.text, ending.code);
  }
}
