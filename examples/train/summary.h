// SPDX-License-Identifier: Apache-2.0
// What a training run came to, and the file that tells it to other programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/step_statistics.h"

namespace ddprun::train {

struct EpochResult {
  int epoch = 0;          // from 1
  double train_loss = 0;  // mean over the epoch's samples of all ranks
  double test_loss = 0;   // mean over the test set
  double test_accuracy = 0;
  double seconds = 0;             // training alone, without the evaluation
  double samples_per_second = 0;  // all ranks

  bool operator==(const EpochResult&) const = default;
};

// Of steps that each rank did alone (--sync-every, --mode=async); rank 0's.
struct SyncReport {
  std::uint64_t num_averagings = 0;  // or exchanges
  std::uint64_t sent_bytes = 0;      // that this rank gave to them
  std::uint64_t max_lead = 0;        // async: steps ahead of the slowest rank, after an exchange
  double mean_lead = 0;
  double waited_seconds = 0;    // async: in exchanges
  double steps_per_second = 0;  // async: of this rank

  bool operator==(const SyncReport&) const = default;
};

struct Summary {
  int world_size = 1;
  std::string backend;
  std::string device;
  std::string data_dir;
  std::vector<EpochResult> epochs;  // those before a checkpoint included
  std::uint64_t first_step = 1;     // of this run; more than 1: it went on from a checkpoint
  std::uint64_t last_step = 0;
  std::string compress = "none";
  StepStatistics steps{};     // rank 0's
  GradientTraffic traffic{};  // of gradients, of one rank in this run
  std::string mode = "ddp";
  SyncReport sync{};
  double loading_seconds = 0;  // that rank 0's training waited for its batches
  double wall_seconds = 0;     // since main() began
};

// "epoch 1/5  loss 0.5321  test loss 0.2101  test accuracy 0.9380  5120 samples/s". Pure.
std::string describe(const EpochResult& result, int num_epochs);

// "2.4 MB of gradients sent per rank and step, 4.8 MB uncompressed: 50.0 %". Pure.
std::string traffic_text(const GradientTraffic& traffic, std::uint64_t num_steps);

// "averaged 9 times, 21.6 MB sent": of --sync-every; of async steps/s and leads, too. Pure.
std::string describe(const SyncReport& report, bool is_async);

// One JSON object; null for a loss that is no finite number. Pure.
std::string to_json(const Summary& summary);

// "train: waited 12.4 s of 31.0 s for batches (--loader-threads 0)"; empty where it was less than a
// twentieth of the time. Pure.
std::string describe_loading(const Summary& summary, int num_threads);

// Throws Error(kInvalidArgument) naming the file where it can't be written. One that is missing is
// missing afterwards, too.
void check_writable(const std::string& path);

// Replaces the file. Throws Error(kSystem) naming it, and then leaves no part of it.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace ddprun::train
