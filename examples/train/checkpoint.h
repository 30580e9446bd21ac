// SPDX-License-Identifier: Apache-2.0
// Saves and loads a training, so that all ranks go on from the same step: rank 0 alone knows the
// directory, the others get from it what it has read.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/train/training_state.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::train {

class CheckpointDirectory;

// Dense, of one of the common dtypes, on any device; the same names and shapes on all ranks.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// All calls are collective, and all throw on every rank the same Error, rank 0's, beside the
// communicator's own: kInvalidArgument, where the user decides (a directory that can't be written
// to, a checkpoint of another training); kSystem, where the disk is full or broken.
class Checkpoint {
 public:
  // `communicator` outlives this object and moves buffers on `device`.
  Checkpoint(const std::string& directory, Communicator& communicator, c10::Device device);
  ~Checkpoint();

  // The newest checkpoint: `tensors` hold what it had, and its state is returned. nullopt: there is
  // none yet, nothing was changed. Refuses one of another model or of another run than `run`.
  std::optional<TrainingState> load(const RunIdentity& run,
                                    const std::vector<NamedTensor>& tensors);

  // On disk when it returns, unless the one saved or loaded last is of the same step already.
  void save(const TrainingState& state, const std::vector<NamedTensor>& tensors);

  // The file that was loaded or saved last; empty: none, or not on rank 0.
  const std::string& path() const { return path_; }

 private:
  template <typename Act>
  std::string on_rank_zero(Act act);
  std::string read_newest(const RunIdentity& run, const std::vector<NamedTensor>& tensors);

  // Constant after construction.
  Communicator& communicator_;
  const c10::Device device_;
  std::unique_ptr<CheckpointDirectory> directory_;  // rank 0 only

  std::optional<std::uint64_t> last_step_;  // of the file at path_
  std::string path_;
};

}  // namespace ddprun::train
