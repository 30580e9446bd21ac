// SPDX-License-Identifier: Apache-2.0
// Reports a training to the user. While it runs: a bar that redraws itself on a terminal, plain
// lines elsewhere. At the end: the result, also in a file for other programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/step_statistics.h"

namespace ddprun::train {

struct ProgressState {
  int epoch = 0;  // from 1
  int num_epochs = 0;
  int step = 0;  // steps done
  int num_steps = 0;
  double loss = 0;                // of this step
  double samples_per_second = 0;  // all ranks
};

// Returns "epoch 1/5 [=====>    ]  12/24  loss 0.532  5120 samples/s", exactly `columns` - 1 wide,
// so that no terminal wraps it. If that is too narrow, the bar is left out, then the text is cut.
// Pure.
std::string progress_line(const ProgressState& state, int columns);

// Returns the columns of the terminal that shows this process' output: DDPRUN_TERMINAL_COLUMNS (set
// by the launcher), else stdout's own; 0: no terminal.
int terminal_columns();

// Used by one thread.
class Progress {
 public:
  // `columns` 0: no bar. `silent` (ranks other than 0): nothing is printed at all.
  Progress(std::FILE* out, int columns, bool silent)
      : out_(out), columns_(columns), silent_(silent) {}

  // Returns whether update() would draw now: at most 20 times a second, and always at an epoch's
  // end.
  bool due(const ProgressState& state) const;
  void update(const ProgressState& state);

  // Prints a whole line, and removes the bar.
  void line(const std::string& text);

 private:
  // Constant after construction.
  std::FILE* const out_;
  const int columns_;
  const bool silent_;

  bool bar_shown_ = false;
  std::optional<Clock::time_point> last_drawn_;
};

struct EpochResult {
  int epoch = 0;          // from 1
  double train_loss = 0;  // mean over the epoch's samples of all ranks
  double test_loss = 0;   // mean over the test set
  double test_accuracy = 0;
  double seconds = 0;             // training alone, without the evaluation
  double samples_per_second = 0;  // all ranks

  bool operator==(const EpochResult&) const = default;
};

// Rank 0's figures for steps that each rank did alone (--sync-every, --mode=async).
struct SyncReport {
  std::uint64_t num_averagings = 0;  // or number of exchanges
  std::uint64_t sent_bytes = 0;      // bytes that this rank gave to them
  std::uint64_t max_lead = 0;        // async: steps ahead of the slowest rank, after an exchange
  double mean_lead = 0;
  double waited_seconds = 0;    // async: time that exchanges waited
  double steps_per_second = 0;  // async: of this rank

  bool operator==(const SyncReport&) const = default;
};

struct Summary {
  int world_size = 1;
  std::string backend;
  std::string device;
  std::string data_dir;
  std::vector<EpochResult> epochs;  // those before a checkpoint included
  std::uint64_t first_step = 1;     // this run's first step; above 1: it went on from a checkpoint
  std::uint64_t last_step = 0;
  std::string compress = "none";
  StepStatistics steps{};     // rank 0's
  GradientTraffic traffic{};  // for gradients, of one rank in this run
  std::string mode = "ddp";
  SyncReport sync{};
  double loading_seconds = 0;  // time that rank 0's training waited for its batches
  double wall_seconds = 0;     // since main() began
};

// Returns "epoch 1/5  loss 0.5321  test loss 0.2101  test accuracy 0.9380  5120 samples/s". Pure.
std::string describe(const EpochResult& result, int num_epochs);

// Returns "2.4 MB of gradients sent per rank and step, 4.8 MB uncompressed: 50.0 %". Pure.
std::string traffic_text(const GradientTraffic& traffic, std::uint64_t num_steps);

// Returns "averaged 9 times, 21.6 MB sent" for --sync-every; with steps/s and leads for async.
// Pure.
std::string describe(const SyncReport& report, bool is_async);

// Returns one JSON object; a loss that is no finite number becomes null. Pure.
std::string to_json(const Summary& summary);

// Returns "train: waited 12.4 s of 31.0 s for batches (--loader-threads 0)"; empty if it was less
// than a twentieth of the time. Pure.
std::string describe_loading(const Summary& summary, int num_threads);

// Throws Error(kInvalidArgument) naming the file if it can't be written. A missing file is missing
// afterwards, too.
void check_writable(const std::string& path);

// Replaces the file. Throws Error(kSystem) naming it, and then leaves no partial file.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace ddprun::train
