// SPDX-License-Identifier: Apache-2.0
// train's checkpoints: the SDK's, with what must match for a training to go on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "examples/train/options.h"
#include "examples/train/own_tensors.h"
#include "examples/train/training_state.h"
#include "worker_sdk/torch/checkpoint.h"

namespace ddprun::train {

// All calls are collective; errors as Checkpoint's.
class TrainingCheckpoint {
 public:
  // `communicator` outlives this object. Every rank saves what is its own, where anything is.
  TrainingCheckpoint(const Options& options, Communicator& communicator, c10::Device device,
                     OwnTensors own);

  // The newest checkpoint. nullopt: there is none yet. Refuses one of another model or of another
  // run than `run`, and of another number of ranks where they have tensors of their own.
  std::optional<TrainingState> load(const RunIdentity& run,
                                    const std::vector<NamedTensor>& tensors);
  void save(const TrainingState& state, const std::vector<NamedTensor>& tensors);
  void finish() { checkpoint_.finish(); }

  const std::string& path() const { return checkpoint_.path(); }

 private:
  struct Split {
    std::vector<NamedTensor> replicated, own;
  };
  Split split(const std::vector<NamedTensor>& tensors) const;

  const OwnTensors own_;
  Checkpoint checkpoint_;
};

}  // namespace ddprun::train
