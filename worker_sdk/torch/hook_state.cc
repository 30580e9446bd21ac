// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/hook_state.h"

#include <ATen/ATen.h>

#include "common/error.h"

namespace ddprun {
namespace {

at::ScalarType scalar_type(const HookTensor& tensor) {
  switch (tensor.view.dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kInt8:
      return at::kChar;
    case DType::kUInt8:
      return at::kByte;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kBool:
      return at::kBool;
    case DType::kFloat8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kFloat8E5M2:
      return at::kFloat8_e5m2;
  }
  throw Error(ErrorCode::kInvalidArgument, "the hook's " + tensor.name + " has no dtype");
}

NamedTensor over(const HookTensor& tensor) {
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(tensor));
  return {"hook." + tensor.name, at::from_blob(tensor.view.data, tensor.shape, options)};
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
    communicator.all_reduce(view, ReduceOp::kAverage);
  }
  return tensors;
}

}  // namespace ddprun
