// SPDX-License-Identifier: Apache-2.0
// The training loop over the SDK: sampler, DistributedDataParallel, optimiser, evaluation.
// No torch header here: main and the rest compile without.
#pragma once

#include <string>

#include "examples/train/idx_file.h"
#include "examples/train/options.h"
#include "examples/train/progress.h"
#include "examples/train/summary.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::train {

// Empty where LibTorch can compute on a GPU here; else why it can't. Quick on a machine without
// one.
std::string why_no_gpu();

// Sets LibTorch's compute threads of this process; see Options::num_threads.
void set_compute_threads(int num_threads, int local_world_size);

// Trains options.num_epochs epochs and reports each through `progress`. Collective. On GPU
// `local_rank` where the communicator is NCCL's, else on the CPU. Every rank returns the same
// losses and accuracies. Throws Error: the communicator's; the message names the lost rank.
Summary run_training(const Options& options, const DataSet& data, Communicator& communicator,
                     int local_rank, Progress& progress);

}  // namespace ddprun::train
