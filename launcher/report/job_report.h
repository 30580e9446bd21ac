// SPDX-License-Identifier: Apache-2.0
// --report: how the job ended, and how it went on this node, as one JSON object. Collects while the
// job runs. docs/report.md has its keys. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/wall_time.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

struct JobReportOptions {
  std::string job_id;
  std::string program;  // as typed
  std::vector<std::string> arguments;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  int num_workers = 1;  // of this node
  std::string host;
  std::int64_t pid = 0;  // of ddprun
};

// For programs, the one word to branch on: "succeeded", "worker_failed", …
const char* state_of(const membership::JobEnd& verdict);

class JobReport {
 public:
  // `begun` and `begun_wall` are one moment.
  JobReport(JobReportOptions options, Clock::time_point begun, WallTime begun_wall);

  void round_began(const membership::StartRound& round, Clock::time_point now);
  void workers_run(Clock::time_point now);  // all of this node's

  // One line, ended by "\n". `local`: decided here, not by the rendezvous. `node_rank` −1: it never
  // had one. `flight_recorders`: files of this node's workers.
  std::string text(const membership::JobEnd& verdict, bool local, int node_rank,
                   Clock::time_point now,
                   const std::vector<std::string>& flight_recorders = {}) const;

 private:
  struct Round {
    membership::StartRound start;
    Clock::time_point began;
    std::optional<Clock::time_point> ran = {};
    std::optional<Clock::time_point> ended = {};  // nullopt: it is the last
  };

  std::string utc(Clock::time_point at) const;

  const JobReportOptions options_;
  const Clock::time_point begun_;
  const WallTime begun_wall_;
  std::deque<Round> rounds_;  // the last kMostRounds
};

}  // namespace ddprun::launcher
