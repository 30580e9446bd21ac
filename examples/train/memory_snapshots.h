// SPDX-License-Identifier: Apache-2.0
// Snapshots of a training in its own memory, for ranks that go on in place when one has died
// (docs/inplace.md). No torch header here.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "examples/train/training_state.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun::train {

// One thread.
class MemorySnapshots {
 public:
  // `every`: steps; 0: none is due.
  explicit MemorySnapshots(std::uint64_t every) : every_(every) {}

  bool due(std::uint64_t step) const { return every_ > 0 && step % every_ == 0; }

  // Copies `tensors`, as they are after state.step. The last two are kept: ranks are in step, so
  // one may have the next snapshot when another one hasn't, but none is further ahead. On a GPU it
  // is collective, and waits until the copies are made and all ranks have come: throws what the
  // communicator throws, and the snapshot is none then.
  void keep(const TrainingState& state, const std::vector<NamedTensor>& tensors,
            Communicator& communicator, c10::Device device);

  // Collective. Into `tensors`, of the same names and shapes, the newest one that all ranks have,
  // as rank 0 has it; later ones are dropped. nullopt, and nothing was changed: there is none.
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

}  // namespace ddprun::train
