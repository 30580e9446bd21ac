// SPDX-License-Identifier: Apache-2.0
// Runs a whole training, from the newest checkpoint to the last epoch, and prints its results.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "apps/train/idx_file.h"
#include "apps/train/options.h"
#include "apps/train/place.h"
#include "apps/train/summary.h"
#include "apps/train/training_state.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun::train {

// Snapshots of a training in its own memory, for ranks that go on in place when one has died
// (docs/inplace.md). Used by one thread.
class MemorySnapshots {
 public:
  // `every` is the number of steps between snapshots; 0: none is due.
  explicit MemorySnapshots(std::uint64_t every) : every_(every) {}

  bool due(std::uint64_t step) const { return every_ > 0 && step % every_ == 0; }

  // Copies `tensors`, as they are after state.step. It keeps the last two snapshots: ranks are in
  // step, so one rank may be one snapshot ahead of another, but no further. On a GPU it is
  // collective, and waits until the copies are made and all ranks have come. Throws what the
  // communicator throws; the snapshot is then dropped.
  void keep(const TrainingState& state, const std::vector<NamedTensor>& tensors,
            Communicator& communicator, c10::Device device);

  // Reads into `tensors`, of the same names and shapes, the newest snapshot that all ranks have, as
  // rank 0 has it. Later ones are dropped. Collective. nullopt: there is none, and nothing was
  // changed.
  std::optional<TrainingState> load(const std::vector<NamedTensor>& tensors,
                                    Communicator& communicator, c10::Device device);

 private:
  struct Snapshot {
    TrainingState state;
    std::vector<NamedTensor> tensors;
  };
  const std::uint64_t every_;
  std::deque<Snapshot> snapshots_;  // oldest first
};

// Trains until options.num_epochs epochs are done, those before a checkpoint included, and reports
// each through `progress`. Collective. It trains on GPU `place.device` if the communicator is
// NCCL's, else on the CPU. Every rank returns the same losses and accuracies. nullopt: the job was
// asked to leave, at the same step on all ranks. Everything that it needs to go on is then saved,
// if there is a checkpoint directory. Throws Error: the communicator's (the message names the lost
// rank), the checkpoint's (checkpoint.h).
std::optional<Summary> run_training(const Options& options, const DataSet& data, const Place& place,
                                    Progress& progress);

// Sets LibTorch's compute threads of this process; see Options::num_threads.
// Error(kInvalidArgument) if OMP_NUM_THREADS is used and is no number of threads.
void set_compute_threads(int num_threads, int local_world_size);

// Returns 0 also if LibTorch's CUDA can't be loaded.
int num_visible_gpus();

}  // namespace ddprun::train
