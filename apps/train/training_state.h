// SPDX-License-Identifier: Apache-2.0
// A training's state at the end of a step, besides its tensors: progress, results so far, and the
// options and data that identify it. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/idx_file.h"
#include "apps/train/options.h"
#include "apps/train/summary.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

namespace ddprun::train {

// Options and data that must not change when a training resumes. All others may change: ranks,
// threads, backend, epochs (if no schedule depends on them).
struct RunIdentity {
  int batch_size = 0;
  int accumulate = 1;
  std::string uneven_inputs;
  std::string optimizer;  // with its options: "sgd --momentum=0.9 --weight-decay=0 …"
  double lr = 0;
  double gamma = 0;
  std::string compress = "none";  // for gradients between the ranks
  std::string ignore_parameters;  // NAME[,NAME…], sorted
  std::uint64_t seed = 0;
  std::uint64_t num_images = 0;      // training images
  std::uint32_t image_checksum = 0;  // of the training images' pixels and labels
  std::string local_steps{};  // "--sync-every=8 …", "--mode=async …"; empty: all ranks are in step
  int batch_norm = -1;        // 0 or 1; -1: the checkpoint is older than this field

  bool operator==(const RunIdentity&) const = default;
};

RunIdentity identity_of(const Options& options, const DataSet& data);

// Returns the first difference, "--seed is 1 there, 2 here"; empty: there is none.
std::string first_difference(const RunIdentity& there, const RunIdentity& here);

struct TrainingState {
  RunIdentity run;
  std::uint64_t step = 0;           // steps done, counted over restarts
  std::vector<EpochResult> epochs;  // finished
  // The current epoch, all ranks together:
  std::int64_t samples = 0;  // samples done
  double loss_sum = 0;       // over these samples
  double seconds = 0;
  // DdpBase::gradient_order(); empty: the checkpoint is older than this field.
  std::vector<std::string> gradient_order;
  int num_threads = 0;  // compute threads of rank 0; 0: the checkpoint is older than this field

  bool operator==(const TrainingState&) const = default;
};

// Writes the state as metadata. Numbers are read back bit for bit.
Metadata to_metadata(const TrainingState& state);

// Throws Error(kProtocol), which says what is missing, no number, or of another version.
TrainingState from_metadata(const Metadata& metadata);

// Returns the random generator's seed of one step on one rank; it depends on the arguments alone.
// So a training that goes on, even with other ranks, needs no generator's state.
std::uint64_t step_seed(std::uint64_t seed, int rank, std::uint64_t step);

}  // namespace ddprun::train
