// SPDX-License-Identifier: Apache-2.0
#include "examples/train/trained_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "examples/train/model.h"
#include "examples/train/parallel_model.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {

void TrainedModel::broadcast_optimizer(int root, Communicator& ranks, c10::Device device) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : optimization().named_tensors()) {
    if (!own_tensors().has(each.name)) tensors.push_back(each.tensor);
  }
  torch_adapter::broadcast_tensors(tensors, root, ranks, device);
}

bool are_finite(const std::vector<at::Tensor>& tensors, Communicator& ranks, c10::Device device) {
  const c10::NoGradGuard no_grad;
  at::Tensor sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (const at::Tensor& each : tensors) sum += each.sum(at::kDouble);
  std::vector<std::uint8_t> finite{std::isfinite(sum.item<double>())};
  torch_adapter::reduce_bytes(finite, ReduceOp::kMin, ranks, device);
  return finite.front() == 1;
}

std::unique_ptr<TrainedModel> make_model(const Options& options, const Place& place,
                                         c10::Device device, std::uint64_t steps_per_epoch) {
  if (place.mesh) {
    return std::make_unique<ParallelModel>(options, *place.mesh, device, steps_per_epoch);
  }
  return std::make_unique<Model>(options, place.communicator, device, steps_per_epoch);
}

}  // namespace ddprun::train
