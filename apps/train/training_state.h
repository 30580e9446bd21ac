// SPDX-License-Identifier: Apache-2.0
// A training's state at the end of a step, beside its tensors. It has its progress, its results so
// far, and the options and data that identify it. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/idx_file.h"
#include "apps/train/options.h"
#include "apps/train/summary.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

namespace ddprun::train {

// Options and data that must not change when a training resumes. All else may: ranks, threads,
// backend, epochs (if no schedule counts on them).
struct RunIdentity {
  int batch_size = 0;
  int accumulate = 1;
  std::string uneven_inputs;
  std::string optimizer;  // with all that it is told: "sgd --momentum=0.9 --weight-decay=0 …"
  double lr = 0;
  double gamma = 0;
  std::string compress = "none";  // gradients between the ranks
  std::string ignore_parameters;  // NAME[,NAME…], sorted
  std::uint64_t seed = 0;
  std::uint64_t num_images = 0;      // to train with
  std::uint32_t image_checksum = 0;  // of their pixels and labels
  std::string local_steps{};  // "--sync-every=8 …", "--mode=async …"; empty: all ranks are in step
  int batch_norm = -1;        // 0 or 1; -1: a checkpoint from before it was kept

  bool operator==(const RunIdentity&) const = default;
};

RunIdentity identity_of(const Options& options, const DataSet& data);

// "--seed is 1 there, 2 here", the first that differs; empty where none does.
std::string first_difference(const RunIdentity& there, const RunIdentity& here);

struct TrainingState {
  RunIdentity run;
  std::uint64_t step = 0;           // steps done, counted over restarts
  std::vector<EpochResult> epochs;  // finished
  // The current epoch, all ranks together:
  std::int64_t samples = 0;  // done
  double loss_sum = 0;       // over them
  double seconds = 0;
  // DdpBase::gradient_order(); empty: a checkpoint from before it was kept.
  std::vector<std::string> gradient_order;
  int num_threads = 0;  // compute threads of rank 0; 0: a checkpoint from before it was kept

  bool operator==(const TrainingState&) const = default;
};

// Numbers come back as they were, bit for bit.
Metadata to_metadata(const TrainingState& state);

// Throws Error(kProtocol) that says what is missing, no number, or of another version.
TrainingState from_metadata(const Metadata& metadata);

// The random generator's seed of one step on one rank, a function of nothing before it. So a
// training that goes on, be it with other ranks, needs no generator's state.
std::uint64_t step_seed(std::uint64_t seed, int rank, std::uint64_t step);

}  // namespace ddprun::train
