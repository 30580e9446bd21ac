// SPDX-License-Identifier: Apache-2.0
// Finds which parameters of a model are parts of larger ones, and makes the whole ones for
// checkpoints. So a model saved by one number of ranks can be loaded by another.
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
  std::string name;  // its name in the layer, "weight", or in the whole model, "fc1.weight"
  at::Tensor tensor;
  std::int64_t dim = 0;
};

// The second base class of modules with such parameters.
class ShardedLayer {
 public:
  virtual ~ShardedLayer() = default;
  virtual std::vector<ShardedParameter> sharded_parameters() const = 0;
};

// Returns the sharded parameters of all layers of the model. All its other parameters are
// replicated: the same on all ranks.
std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model);

// Copies replicated parameters and all buffers from the group's rank 0 to all. It is for a model
// whose ranks may have drawn different numbers. Collective.
void broadcast_replicated(torch::nn::Module& model, Communicator& group);

// Returns all parameters and buffers by name, sharded ones as a whole: those of the same model in a
// group of one. They are copies if sharded, else the model's own. Collective, whichever rank then
// saves them.
std::vector<NamedTensor> full_tensors(const torch::nn::Module& model, Communicator& group);

// Copies this rank's part of each tensor into the model, and ignores tensors that the model hasn't.
// Not collective. Error(kInvalidArgument), without effect: one is missing or has another shape; the
// message names it.
void load_full_tensors(torch::nn::Module& model, const std::vector<NamedTensor>& tensors,
                       const Communicator& group);

}  // namespace ddprun
