// SPDX-License-Identifier: Apache-2.0
// This process' place in its job.
#pragma once

#include "apps/train/options.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/mesh.h"
#include "worker_sdk/core/session.h"

namespace ddprun::train {

class MemorySnapshots;

struct Place {
  Communicator& communicator;  // all ranks
  Session* session = nullptr;  // null: no launcher
  int device = 0;
  MemorySnapshots* snapshots = nullptr;  // null: this training can't go on in place
  bool recovered = false;                // this training goes on in place now
  Mesh* mesh = nullptr;                  // null: without --parallel, every rank has the whole net

  // The ranks that share the images, each with a part of every batch.
  Communicator& data_ranks() const { return mesh ? mesh->along(kDataAxis) : communicator; }

  // Returns whether this is the first of the ranks that have the same images.
  bool is_first_of_its_images() const {
    return !mesh || (mesh->coordinate(kPipelineAxis) == 0 && mesh->coordinate(kTensorAxis) == 0);
  }
};

}  // namespace ddprun::train
