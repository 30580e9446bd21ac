// SPDX-License-Identifier: Apache-2.0
// train's checkpoints: the SDK's, with what must match for a training to go on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "examples/train/options.h"
#include "examples/train/training_state.h"
#include "worker_sdk/torch/checkpoint.h"

namespace ddprun::train {

// All calls are collective; errors as Checkpoint's.
class TrainingCheckpoint {
 public:
  // `communicator` outlives this object.
  TrainingCheckpoint(const Options& options, Communicator& communicator, c10::Device device);

  // The newest checkpoint. nullopt: there is none yet. Refuses one of another model or of another
  // run than `run`.
  std::optional<TrainingState> load(const RunIdentity& run,
                                    const std::vector<NamedTensor>& tensors);
  void save(const TrainingState& state, const std::vector<NamedTensor>& tensors);
  void finish() { checkpoint_.finish(); }

  const std::string& path() const { return checkpoint_.path(); }

 private:
  Checkpoint checkpoint_;
};

}  // namespace ddprun::train
