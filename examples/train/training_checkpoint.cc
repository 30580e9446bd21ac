// SPDX-License-Identifier: Apache-2.0
#include "examples/train/training_checkpoint.h"

#include "common/log.h"

namespace ddprun::train {

TrainingCheckpoint::TrainingCheckpoint(const Options& options, Communicator& communicator,
                                       c10::Device device)
    : checkpoint_({.directory = options.checkpoint_dir,
                   .num_kept = options.checkpoint_keep,
                   .async = options.checkpoint_async,
                   .sharded = options.checkpoint_sharded},
                  communicator, device) {}

std::optional<TrainingState> TrainingCheckpoint::load(const RunIdentity& run,
                                                      const std::vector<NamedTensor>& tensors) {
  const auto accept = [&](std::uint64_t step, const Metadata& metadata) -> std::string {
    const TrainingState state = from_metadata(metadata);
    if (state.step != step) return concat("it is of step ", state.step);
    return first_difference(state.run, run);
  };
  const std::optional<SavedState> saved = checkpoint_.load(tensors, accept);
  if (!saved) return std::nullopt;
  return from_metadata(saved->metadata);
}

void TrainingCheckpoint::save(const TrainingState& state, const std::vector<NamedTensor>& tensors) {
  checkpoint_.save(state.step, to_metadata(state), tensors);
}

}  // namespace ddprun::train
