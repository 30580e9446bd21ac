// SPDX-License-Identifier: Apache-2.0
// Time from nothing to all workers running, to all gone, for one WorkerGroup; one JSON line.
//
//   spawn_bench [--workers N] [--repeat R] [--lines L] [PROGRAM args…]   (default: 2, 20, 0, true)
//
// --lines: instead of PROGRAM each worker prints L lines of 100 bytes through the agent. The
// agent's stdout should then be a file or /dev/null; the JSON goes to stderr.
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/worker_group.h"
#include "bench/median.h"

namespace {

using namespace ddprun::agent;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Times {
  double running_ms = 0;
  double exited_ms = 0;
  double gone_ms = 0;
};

Times run_once(boost::asio::io_context& io, Console& console, int num_workers,
               const std::vector<std::string>& argv) {
  Times times;
  const auto begin = Clock::now();
  std::unique_ptr<WorkerGroup> group;
  WorkerGroupEvents events;
  events.all_running = [&] { times.running_ms = milliseconds_since(begin); };
  events.all_succeeded = [&] {
    times.exited_ms = milliseconds_since(begin);
    group->stop(std::chrono::seconds(30));
  };
  events.worker_failed = [](const ddprun::membership::WorkerFailure& failure, auto) {
    std::fprintf(stderr, "spawn_bench: a worker failed: %s\n", failure.note.c_str());
    std::exit(1);
  };
  events.all_gone = [&] {
    times.gone_ms = milliseconds_since(begin);
    io.stop();
  };
  WorkerGroupOptions options;
  options.several_workers = true;
  group = std::make_unique<WorkerGroup>(io, console, options, 0, std::move(events));
  std::vector<WorkerSpec> specs(static_cast<std::size_t>(num_workers));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].global_rank = specs[i].local_rank = static_cast<int>(i);
    specs[i].argv = argv;
    specs[i].environment = {"PATH=/usr/bin:/bin"};
  }
  group->start(std::move(specs));
  io.restart();
  io.run();
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  int num_workers = 2, num_repeats = 20, num_lines = 0;
  int at = 1;
  for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
    const std::string flag = argv[at];
    int* const value = flag == "--workers"  ? &num_workers
                       : flag == "--repeat" ? &num_repeats
                       : flag == "--lines"  ? &num_lines
                                            : nullptr;
    if (!value || (*value = std::atoi(argv[at + 1])) <= 0) {
      std::fprintf(stderr, "spawn_bench: %s: see the head of spawn_bench.cc\n", argv[at]);
      return 2;
    }
  }
  std::vector<std::string> command(argv + at, argv + argc);
  if (command.empty()) command = {"/bin/true"};
  if (num_lines > 0) {
    command = {"/bin/sh", "-c",
               "yes " + std::string(99, 'x') + " | head -n " + std::to_string(num_lines)};
  }
  boost::asio::io_context io;
  Console console(io);
  std::vector<double> running, exited, gone;
  for (int i = 0; i < num_repeats; ++i) {
    const Times times = run_once(io, console, num_workers, command);
    running.push_back(times.running_ms);
    exited.push_back(times.exited_ms);
    gone.push_back(times.gone_ms);
  }
  console.finish(ddprun::Deadline::after(std::chrono::seconds(60)));
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const double cpu_seconds =
      static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
      static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  const double lines_per_second =
      num_lines > 0 ? 1e3 * num_workers * num_lines / ddprun::bench::median(exited) : 0;
  std::fprintf(stderr,
               "{\"workers\": %d, \"repeat\": %d, \"all_running_ms\": %.3f, "
               "\"all_exited_ms\": %.3f, \"all_gone_ms\": %.3f, \"lines_per_second\": %.0f, "
               "\"agent_cpu_seconds\": %.3f, \"agent_peak_kb\": %ld}\n",
               num_workers, num_repeats, ddprun::bench::median(running),
               ddprun::bench::median(exited), ddprun::bench::median(gone), lines_per_second,
               cpu_seconds, usage.ru_maxrss);
  return 0;
}
