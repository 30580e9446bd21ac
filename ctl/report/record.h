// SPDX-License-Identifier: Apache-2.0
// The contents of a job's files, put together. Plain data, of bounded size whatever the files hold.
// Times are seconds since Record::origin.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::report {

// Readings of many ranks or nodes over a job's time. Each rank or node has a row. Columns of time
// become twice as wide when there would be too many of them.
class TimeGrid {
 public:
  static constexpr std::size_t kMostColumns = 512;
  static constexpr std::size_t kMostCells = std::size_t{1} << 22;  // 8 bytes each
  static constexpr std::size_t kMostRows = std::size_t{1} << 17;
  static constexpr double kFirstWidth = 1;  // seconds

  struct Row {
    std::string name;
    double sum = 0, seconds = 0;  // sum of value × seconds; seconds with a value
    double least = 0, most = 0;   // of single readings
    double most_at = 0;

    double mean() const { return seconds > 0 ? sum / seconds : 0; }
  };

  // Returns the number of the row with this name, and makes the row if there is none. nullopt:
  // there are too many.
  std::optional<std::size_t> row(const std::string& name);

  // Adds a value that held from `begin` to `end`, in seconds since the job began. With begin = end
  // it held for a moment. All three are finite.
  void add(std::size_t row, double begin, double end, double value);

  bool empty() const { return num_columns_ == 0; }
  const std::vector<Row>& rows() const { return rows_; }
  std::size_t num_columns() const { return num_columns_; }  // up to the last one with a value
  double width() const { return width_; }
  // Returns the mean of the row in that column. nullopt: it has no reading there.
  std::optional<double> at(std::size_t row, std::size_t column) const;

 private:
  struct Cell {
    float sum = 0, seconds = 0;
  };

  std::size_t most_columns() const;
  void widen();

  std::vector<Row> rows_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::vector<Cell>> cells_;  // by row
  double width_ = kFirstWidth;
  std::size_t num_columns_ = 0;
};

inline constexpr std::size_t kNumPhases = 10;
// Phases of the rendezvous' ledger (docs/rendezvous.md, "Where the time went"), in a round's order.
inline constexpr std::array<std::string_view, kNumPhases> kPhaseKeys = {
    "rendezvous", "warming", "spawn",  "communicators", "first_step",
    "running",    "redone",  "detect", "stop",          "delay"};
// Names of the phases, as on the status page.
inline constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {
    "rendezvous", "imports",    "start",    "communicators", "first step",
    "training",   "done again", "noticing", "stopping",      "crash loop's delay"};
using PhaseSeconds = std::array<double, kNumPhases>;
// A phase's index in these arrays.
consteval std::size_t phase_index(std::string_view key) {
  return static_cast<std::size_t>(std::ranges::find(kPhaseKeys, key) - kPhaseKeys.begin());
}

struct RoundFacts {
  std::int64_t round = 0;
  std::int64_t num_nodes = 0, world_size = 0;
  bool in_place = false;
  double waited_seconds = 0;                  // the longest wait of a node before it
  std::optional<double> began;                // on the first node
  std::optional<double> ran;                  // when all known workers ran
  std::optional<double> ended;                // its last event
  std::set<std::int64_t> nodes;               // ranks of the nodes whose events tell of it
  std::map<std::string, std::int64_t> exits;  // by kind
  std::string cause;                          // why it ended before the job did
  std::set<std::string> frameworks;           // of its ranks' programs, only the first few
  std::int64_t steps_skipped = 0;             // by one rank's gradient scaler; the highest count
  // From the ledger:
  std::optional<PhaseSeconds> seconds;
  std::int64_t first_step = 0, last_step = 0, steps_redone = 0;
  std::int64_t num_warm = 0;
  std::string cold;  // why not all workers were warm; empty: all were, or it wasn't asked for
  std::string first_failure;
  std::vector<std::string> went, stragglers;
};

struct WorkerExit {
  std::int64_t round = 0, global_rank = -1, pid = 0;
  std::string host, kind, signal;
  std::optional<std::int64_t> exit_code;
  double at = 0;
};

struct NodeFacts {
  std::optional<std::int64_t> node_rank;
  std::int64_t num_workers = 0;
  bool has_verdict = false;
  double last_word = 0;
};

struct Verdict {
  std::string state, reason, first_failure;
  std::optional<std::int64_t> exit_code;
  std::int64_t rounds = 0;
  double at = 0;
};

struct LedgerSums {
  std::optional<double> ettr;
  PhaseSeconds seconds{};
};

// `ddprun --report`, as far as the page shows it.
struct EndReport {
  std::string job = {}, state = {}, reason = {}, program = {}, began = {}, ended = {};
  std::optional<std::int64_t> exit_code = {};
  std::optional<double> seconds = {};
  std::int64_t rounds = 0;
  std::vector<std::pair<std::string, std::string>> failure = {};  // name and text
  std::vector<std::string> last_lines = {}, victims = {}, excluded = {};
};

struct Epoch {
  std::int64_t epoch = 0;
  std::optional<double> train_loss, test_loss, test_accuracy, samples_per_second;
};

// `train --json`, as far as the page shows it.
struct TrainSummary {
  std::vector<Epoch> epochs;
  std::vector<std::pair<std::string, std::string>> facts;
};

struct Source {
  std::string path, what;                              // "events", "--report", …
  std::int64_t lines = 0, unreadable = 0, others = 0;  // others: lines of other jobs
  std::string first_problem = {};                      // "line 7: …"
};

// The time from which a rank's loss, known before, was no number (NaN, infinity) or out of bounds.
struct NoLoss {
  std::int64_t rank = 0;
  std::optional<std::int64_t> step;
  double at = 0;  // seconds since the job began
};

// Rows are named "0", "1", … for ranks, by host for machines, and "host GPU 0" for GPUs.
struct Readings {
  TimeGrid loss, samples, step, own;  // samples: per second; own: a step without waits for others
  TimeGrid loader;                    // the wait for data in a step
  TimeGrid cpu, memory, received, sent, retransmits;
  TimeGrid gpu_use, gpu_memory, gpu_watts, gpu_celsius;
  TimeGrid gpu_peak;              // rows are ranks: the most memory that their tensors had
  std::optional<NoLoss> no_loss;  // the earliest one
  bool has_progress = false;      // a rank wrote its progress page
};

struct Record {
  std::string job;
  double origin = 0;  // seconds since 1970
  std::string program, version;
  std::int64_t min_nodes = 0, max_nodes = 0, max_restarts = 0;
  std::map<std::int64_t, RoundFacts> rounds;
  std::map<std::string, NodeFacts> nodes;  // by host
  std::vector<WorkerExit> failures;        // the first workers that failed by themselves
  std::map<std::string, std::int64_t> exits;
  std::map<std::string, std::string> hosts_of_ranks;
  std::optional<Verdict> verdict;
  std::optional<LedgerSums> ledger;
  std::optional<EndReport> end_report;
  std::optional<TrainSummary> train;
  Readings readings;
  std::int64_t lost = 0;                           // events lost because a disk was full
  double last_word = 0;                            // the last event of any node
  std::map<std::string, std::int64_t> other_jobs;  // lines of each other job
  std::vector<Source> sources;
  std::vector<std::string> passed_over;
};

}  // namespace ddprun::report
