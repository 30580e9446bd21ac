// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/hook_state.h"

#include <ATen/ATen.h>

#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

NamedTensor over(const HookTensor& tensor) {
  return {"hook." + tensor.name, torch_adapter::tensor_over(tensor.view).view(tensor.shape)};
}

}  // namespace

std::vector<NamedTensor> hook_tensors(CommHook& hook) {
  std::vector<NamedTensor> tensors;
  for (const HookTensor& tensor : hook.state()) tensors.push_back(over(tensor));
  return tensors;
}

std::vector<NamedTensor> hook_tensors_to_save(CommHook& hook, Communicator& communicator) {
  std::vector<NamedTensor> tensors;
  for (const HookTensor& tensor : hook.state()) {
    tensors.push_back(over(tensor));
    if (!tensor.per_rank) continue;
    at::Tensor& mean = tensors.back().tensor;
    mean = mean.clone();
    TensorView view = tensor.view;
    view.data = mean.mutable_data_ptr();
    const torch_adapter::KeptOnError kept(communicator, {mean});
    communicator.all_reduce(view, ReduceOp::kAverage);
  }
  return tensors;
}

}  // namespace ddprun
