// SPDX-License-Identifier: Apache-2.0
// Makes and writes --report: how the job ended, and how it went on this node, as one JSON object
// (docs/report.md has its keys).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/regular_file.h"
#include "common/unique_fd.h"
#include "common/wall_time.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

struct JobFacts {
  std::string job_id;
  std::string host;
  std::string version = {};  // of ddprun
  std::int64_t pid = 0;      // ddprun's
  std::string program;       // as typed
  std::vector<std::string> arguments = {};
  int num_workers = 1;  // of this node
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
};

// Returns the word for programs to test: "succeeded", "worker_failed", …
const char* state_of(const membership::JobEnd& verdict);

// Collects facts while the job runs. Pure.
class JobReport {
 public:
  // `begun` and `begun_wall` are the same moment.
  JobReport(JobFacts facts, Clock::time_point begun, WallTime begun_wall);

  void round_began(const membership::StartRound& round, Clock::time_point now);
  void workers_run(Clock::time_point now);  // all workers of this node run

  // Returns one line, with its "\n". `local`: this node decided the end, not the rendezvous.
  // `node_rank` −1: it never had one. `flight_recorders`: files of this node's workers.
  std::string text(const membership::JobEnd& verdict, bool local, int node_rank,
                   Clock::time_point now,
                   const std::vector<std::string>& flight_recorders = {}) const;

 private:
  struct Round {
    membership::StartRound start;
    Clock::time_point began;
    std::optional<Clock::time_point> ran = {};
    std::optional<Clock::time_point> ended = {};  // nullopt: it is the last round
  };

  std::string utc(Clock::time_point at) const;

  const JobFacts facts_;
  const Clock::time_point begun_;
  const WallTime begun_wall_;
  std::deque<Round> rounds_;  // the last kMostRounds
};

// A report's file. It exists whole, or not at all.
class ReportFile {
 public:
  // `path` is as given: "-" is stdout, and "${hostname}" stands for this host's name. If it exists
  // and is no regular file (a pipe, /dev/fd/3), the report is written to it directly. Opens
  // nothing.
  explicit ReportFile(std::string path);

  // Returns why it could not be written now; empty: it could. problem_by_trial() also writes a
  // small file beside it, and removes that.
  std::string problem() const;
  std::string problem_by_trial() const;

  // Removes an earlier job's report at this path. Opens a pipe, so that its reader waits.
  void begin();

  // Replaces the file in one step: writes a file beside it, syncs and renames that. On failure the
  // old file stays. A pipe's reader has 10 s. Returns the problem; empty: none.
  std::string write(const std::string& text);

  bool is_stdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }

 private:
  NewFile make_temporary(mode_t mode) const;
  std::string replace(const std::string& text, NewFile& file) const;

  UniqueFd open_direct() const;

  std::string path_;        // absolute, or "-"; links are followed unless they are others'
  bool is_direct_ = false;  // it is no regular file
  bool is_fifo_ = false;
  UniqueFd direct_;
};

// Replaces "${hostname}" by this host's name.
std::string with_host_name(std::string path);

}  // namespace ddprun::launcher
