// SPDX-License-Identifier: Apache-2.0
// Between this rank's parts of the net and what a checkpoint has: whole tensors by the names that
// they have on a rank with the whole net, so that any layout loads what another one saved. No torch
// header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "examples/train/place.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun::train {

// A parameter of the whole net, and where it is.
struct PlacedParameter {
  std::string name;  // "fc1.weight"
  std::vector<std::int64_t> shape;
  int stage = 0;
  // Along which the tensor ranks of its stage share it; −1: each has all of it. On other stages
  // not known, and not needed.
  std::int64_t tensor_dim = -1;
};

// Constant after construction. All calls are in one thread.
class WholeTensors {
 public:
  // `parameters`: of the whole net, in its order. `mesh` outlives this object.
  WholeTensors(std::vector<PlacedParameter> parameters, Mesh& mesh, c10::Device device);

  // `parts` are what this rank has: of each of its parameters the parameter itself and the
  // optimiser's state ("sgd.fc1.weight.momentum_buffer"), of its shape or one number. Every rank
  // has the same kinds of state for each of its parameters.

  // Room for all that a checkpoint has. Not collective.
  std::vector<NamedTensor> make(const std::vector<NamedTensor>& parts) const;

  // This rank's part of each, copied into `parts`. Not collective.
  void scatter(const std::vector<NamedTensor>& whole, const std::vector<NamedTensor>& parts) const;

  // All that a checkpoint has, on every rank. Collective over all ranks of the mesh.
  std::vector<NamedTensor> gather(const std::vector<NamedTensor>& parts) const;

 private:
  at::Tensor own_part(const at::Tensor& whole, const PlacedParameter& parameter) const;

  const std::vector<PlacedParameter> parameters_;
  Mesh& mesh_;
  const c10::Device device_;
};

}  // namespace ddprun::train
