// SPDX-License-Identifier: Apache-2.0
// A whole training, from the newest checkpoint to the last epoch, and what is printed of it.
#pragma once

#include <optional>

#include "examples/train/idx_file.h"
#include "examples/train/options.h"
#include "examples/train/place.h"
#include "examples/train/progress.h"
#include "examples/train/summary.h"

namespace ddprun::train {

// Trains until options.num_epochs epochs are done, those before a checkpoint included, and reports
// each through `progress`. Collective. On GPU `place.device` where the communicator is NCCL's, else
// on the CPU. Every rank returns the same losses and accuracies; nullopt: the job was asked to
// leave, at the same step on all ranks, and what it needs to go on is saved if there is a
// checkpoint directory. Throws Error: the communicator's (the message names the lost rank), the
// checkpoint's (checkpoint.h).
std::optional<Summary> run_training(const Options& options, const DataSet& data, const Place& place,
                                    Progress& progress);

}  // namespace ddprun::train
