// SPDX-License-Identifier: Apache-2.0
// Which parameters of a model are parts of larger ones, and the whole ones for checkpoints. So a
// model saved by one number of ranks is loaded by another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace torch::nn {
class Module;
}

namespace ddprun {

// A parameter of which each rank of a group has an equal piece along `dim`.
struct ShardedParameter {
  std::string name;  // in its layer: "weight"; of a whole model: "fc1.weight"
  at::Tensor tensor;
  std::int64_t dim = 0;
};

// The second base class of modules with such parameters.
class ShardedLayer {
 public:
  virtual ~ShardedLayer() = default;
  virtual std::vector<ShardedParameter> sharded_parameters() const = 0;
};

// The sharded parameters of all layers of the model. All its other parameters are replicated: the
// same on all ranks.
std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model);

// Replicated parameters and all buffers become those of the group's rank 0. For a model whose ranks
// may have drawn different numbers. Collective.
void broadcast_replicated(torch::nn::Module& model, Communicator& group);

// All parameters and buffers by name, sharded ones as a whole: those of the same model in a group
// of one. Copies where they are sharded, else the model's own. Collective, whichever rank then
// saves them.
std::vector<NamedTensor> full_tensors(const torch::nn::Module& model, Communicator& group);

// This rank's part of each, copied into the model; more tensors than the model has are passed over.
// Not collective. Error(kInvalidArgument): one is missing or has another shape; the message names
// it, and nothing was changed.
void load_full_tensors(torch::nn::Module& model, const std::vector<NamedTensor>& tensors,
                       const Communicator& group);

}  // namespace ddprun
