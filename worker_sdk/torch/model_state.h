// SPDX-License-Identifier: Apache-2.0
// A module's parameters and buffers by name, and the check that all ranks have the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/model_difference.h"
#include "worker_sdk/torch/named_tensor.h"

namespace torch::nn {
class Module;
}

namespace ddprun::torch_adapter {

// In the module's order; a tensor that several modules share is listed under each name.
struct ModelState {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::vector<at::Tensor> ignored_parameters;

  std::vector<at::Tensor> tensors() const;  // parameters, then buffers
};

// Parameters and buffers without those named in `ignored`. Error(kInvalidArgument): a name there
// that the module hasn't; one of the others that is sparse, or expanded.
ModelState state_of(const torch::nn::Module& module, const std::vector<std::string>& ignored);

// Collective. Error(kInvalidArgument), the same on every rank, names the first rank whose `state`
// (names, dtypes, shapes, strides) or `more` differs from rank 0's.
void check_same_model(const ModelState& state, std::vector<ModelEntry> more,
                      Communicator& communicator, c10::Device device);

}  // namespace ddprun::torch_adapter
