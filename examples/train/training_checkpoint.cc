// SPDX-License-Identifier: Apache-2.0
#include "examples/train/training_checkpoint.h"

#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::train {

TrainingCheckpoint::TrainingCheckpoint(const Options& options, Communicator& communicator,
                                       c10::Device device, OwnTensors own)
    : own_(std::move(own)),
      checkpoint_({.directory = options.checkpoint_dir,
                   .num_kept = options.checkpoint_keep,
                   .async = options.checkpoint_async,
                   .sharded = options.checkpoint_sharded},
                  communicator, device) {}

TrainingCheckpoint::Split TrainingCheckpoint::split(const std::vector<NamedTensor>& tensors) const {
  Split parts;
  for (const NamedTensor& each : tensors) {
    (own_.has(each.name) ? parts.own : parts.replicated).push_back(each);
  }
  return parts;
}

std::optional<TrainingState> TrainingCheckpoint::load(const RunIdentity& run,
                                                      const std::vector<NamedTensor>& tensors) {
  const auto accept = [&](std::uint64_t step, const Metadata& metadata) -> std::string {
    const TrainingState state = from_metadata(metadata);
    if (state.step != step) return concat("it is of step ", state.step);
    return first_difference(state.run, run);
  };
  const auto [replicated, own] = split(tensors);
  const std::optional<SavedState> saved = checkpoint_.load(replicated, accept, own);
  if (!saved) return std::nullopt;
  if (!own.empty() && !saved->has_own) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("the checkpoint of step ", saved->step,
                       " does not have what is each rank's own (--ignore-parameters, "
                       "--no-broadcast-buffers): it is of another number of ranks; start as many, "
                       "or begin anew in another directory"));
  }
  return from_metadata(saved->metadata);
}

void TrainingCheckpoint::save(const TrainingState& state, const std::vector<NamedTensor>& tensors) {
  const auto [replicated, own] = split(tensors);
  checkpoint_.save(state.step, to_metadata(state), replicated, own);
}

}  // namespace ddprun::train
