// SPDX-License-Identifier: Apache-2.0
// --report: how the job ended, and how it went on this node, as one JSON object (docs/report.md has
// its keys), and its file.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/new_file.h"
#include "common/unique_fd.h"
#include "common/wall_time.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

struct JobFacts {
  std::string job_id;
  std::string host;
  std::string version = {};  // of ddprun
  std::int64_t pid = 0;      // likewise
  std::string program;       // as typed
  std::vector<std::string> arguments = {};
  int num_workers = 1;  // of this node
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
};

// For programs, the one word to branch on: "succeeded", "worker_failed", …
const char* state_of(const membership::JobEnd& verdict);

// Collects while the job runs. Pure.
class JobReport {
 public:
  // `begun` and `begun_wall` are one moment.
  JobReport(JobFacts facts, Clock::time_point begun, WallTime begun_wall);

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

  const JobFacts facts_;
  const Clock::time_point begun_;
  const WallTime begun_wall_;
  std::deque<Round> rounds_;  // the last kMostRounds
};

// A report's file, which is there whole, or not at all.
class ReportFile {
 public:
  // `path` as given: "-" is stdout; "${hostname}" in it is this host's name. Anything there that is
  // no regular file (a pipe, /dev/fd/3) is written to as it is. Opens nothing.
  explicit ReportFile(std::string path);

  // Whether it could be written now. Returns the problem; empty: none. problem_by_trial() also
  // writes a small file beside it, which is gone again.
  std::string problem() const;
  std::string problem_by_trial() const;

  // An earlier job's report at this path is none of this one: it is removed. A pipe is opened, so
  // that its reader has to wait.
  void begin();

  // Replaces the file in one step: written beside it, synced, renamed. Returns the problem; empty:
  // none. On failure the old file stays. A pipe's reader has 10 s.
  std::string write(const std::string& text);

  bool is_stdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }

 private:
  NewFile make_temporary(mode_t mode) const;
  std::string replace(const std::string& text, NewFile& file) const;

  UniqueFd open_direct() const;

  std::string path_;        // absolute, links followed unless they are others'; "-"
  bool is_direct_ = false;  // no regular file
  bool is_fifo_ = false;
  UniqueFd direct_;
};

// "${hostname}" in it is this host's name.
std::string with_host_name(std::string path);

}  // namespace ddprun::launcher
