// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdio>
#include <vector>

#include "common/json.h"

namespace ddprun::bench {
namespace {

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

boost::json::array milliseconds_of(const std::vector<double>& seconds) {
  boost::json::array array;
  for (const double value : seconds) array.push_back(value * 1e3);
  return array;
}

}  // namespace

void print_table(const EmulationOptions& options, const EmulationResult& result) {
  const EmulationTimes& times = result.times;
  std::printf("%d agents × %d workers, seed %llu\n", options.num_agents,
              options.num_workers_per_node, static_cast<unsigned long long>(options.seed));
  print_row("first join → every member told its ranks", {times.join});
  print_row("a worker fails → every agent told", times.failure_told);
  print_row("a worker fails → all run again", times.failure_running);
  print_row("a node vanishes → every other agent told", times.loss_told);
  print_row("a node vanishes → all run again", times.loss_running);
  print_row("random faults: told to stop → all run again", times.restart);
  print_row(result.end ? "the job ends → every agent has left"
                       : "last worker done → every agent has left",
            {times.end});
  if (times.daemon_bytes_per_agent > 0) {
    std::printf("%-52s %8.1f KB\n", "the rendezvous' memory per agent",
                times.daemon_bytes_per_agent / 1e3);
  }
  if (options.duration.count() > 0) {
    std::printf("%d random faults, %llu rounds\n", result.num_faults,
                static_cast<unsigned long long>(result.num_rounds));
  }
  if (result.end) std::printf("the job ended before its time: %s\n", result.end->c_str());
  std::printf("every invariant held\n");
}

void print_json(const EmulationOptions& options, const EmulationResult& result) {
  const EmulationTimes& times = result.times;
  boost::json::object object;
  object["agents"] = options.num_agents;
  object["workers_per_node"] = options.num_workers_per_node;
  object["seed"] = options.seed;
  object["join_ms"] = times.join * 1e3;
  object["failure_told_ms"] = milliseconds_of(times.failure_told);
  object["failure_running_ms"] = milliseconds_of(times.failure_running);
  object["loss_told_ms"] = milliseconds_of(times.loss_told);
  object["loss_running_ms"] = milliseconds_of(times.loss_running);
  object["restart_ms"] = milliseconds_of(times.restart);
  object["end_ms"] = times.end * 1e3;
  object["rounds"] = result.num_rounds;
  object["random_faults"] = result.num_faults;
  object["ended_early"] = result.end.value_or("");
  object["seconds"] = result.seconds;
  if (times.daemon_bytes_per_agent > 0) {
    object["daemon_bytes_per_agent"] = times.daemon_bytes_per_agent;
  }
  std::printf("%s\n", written_json(object).c_str());
}

void print_violation(const EmulationOptions& options, const EmulationResult& result) {
  std::fprintf(stderr, "fleet_load: an invariant was violated: %s (seed %llu, %.6f s)\n",
               result.violation->c_str(), static_cast<unsigned long long>(options.seed),
               result.seconds);
  std::fprintf(stderr, "the last events:\n");
  for (const std::string& line : result.last_events) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace ddprun::bench
