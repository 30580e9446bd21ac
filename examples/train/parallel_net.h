// SPDX-License-Identifier: Apache-2.0
// This rank's part of the net: some of its layers (a stage), and of the linear ones some of the
// features. Heavy: includes LibTorch's modules; for the .cc files of the parallel model alone.
#pragma once

#include <torch/nn/modules/conv.h>

#include <string>
#include <vector>

#include "examples/train/dropout_masks.h"
#include "examples/train/net.h"
#include "examples/train/place.h"
#include "worker_sdk/torch/parallel/parallel_linear.h"

namespace ddprun::train {

// The layers of the net in their order, as stages are cut: conv1 | conv2, pool | fc1 | fc2. Each
// has a name, which its parameters' names begin with.
const std::vector<std::string>& layer_names();

// Which of `num_stages` has a layer: the two convolutions and the two linear layers are halves.
// Error(kInvalidArgument): more stages than layers.
int stage_of(const std::string& layer, int num_stages);

// One thread.
struct ParallelNetImpl : torch::nn::Module {
  // The part of `whole` that belongs at this place; `mesh` outlives it. Error(kInvalidArgument):
  // more stages than layers, or features that the tensor ranks can't share evenly.
  ParallelNetImpl(NetImpl& whole, Mesh& mesh);

  // From what the stage before has (the first one: N × 1 × 28 × 28 images) to what the next one
  // needs (the last one: N × 10 log-probabilities). `masks`: rows of these N; null: drops nothing.
  // Collective over the tensor ranks.
  torch::Tensor forward(torch::Tensor x, const DropoutMasks* masks);

  // Null: another stage's.
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  ColumnParallelLinear fc1{nullptr};
  RowParallelLinear fc2{nullptr};

 private:
  Communicator& tensor_ranks_;
};

}  // namespace ddprun::train
