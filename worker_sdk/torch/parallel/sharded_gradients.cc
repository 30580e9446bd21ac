// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/sharded_gradients.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/parallel/sharded_layer.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"

namespace ddprun {
namespace {

// Of one number over the ranks, wherever the communicator wants its buffers.
double reduced(double value, ReduceOp op, at::Device device, Communicator& group) {
  if (group.size() == 1) return value;
  const at::Tensor number =
      at::full({1}, value, at::TensorOptions().dtype(at::kDouble).device(device));
  return torch_adapter::all_reduced(number, group, op).item<double>();
}

// The sum of the p-th powers, or the largest absolute value.
double powers(const std::vector<at::Tensor>& gradients, double norm_type) {
  if (gradients.empty()) return 0;
  double total = 0;
  for (const at::Tensor& each : at::_foreach_norm(gradients, norm_type)) {
    const double norm = each.item<double>();
    if (std::isinf(norm_type)) {
      total = std::max(total, std::isnan(norm) ? INFINITY : norm);  // a maximum loses NaN
    } else {
      total += norm_type == 2 ? norm * norm : std::pow(norm, norm_type);
    }
  }
  return total;
}

at::Device device_of(const GradientParts& gradients) {
  if (!gradients.sharded.empty()) return gradients.sharded.front().device();
  return gradients.replicated.empty() ? at::Device(at::kCPU)
                                      : gradients.replicated.front().device();
}

}  // namespace

void sum_gradients(const std::vector<at::Tensor>& parameters, Communicator& group) {
  torch_adapter::reduce_gradients(parameters, ReduceOp::kSum, group);
}

GradientParts gradient_parts(const torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> sharded;
  for (const ShardedParameter& each : sharded_parameters(model)) {
    sharded.insert(each.tensor.unsafeGetTensorImpl());
  }
  GradientParts parts;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    const bool is_sharded = sharded.contains(parameter.unsafeGetTensorImpl());
    (is_sharded ? parts.sharded : parts.replicated).push_back(parameter.grad());
  }
  return parts;
}

at::Tensor gradient_norm(const GradientParts& gradients, double norm_type, Communicator& group,
                         Communicator* stages) {
  const c10::NoGradGuard no_grad;
  if (!(norm_type > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("clipping: norm_type is ", norm_type, ": it must be above 0"));
  }
  const bool is_largest = std::isinf(norm_type);
  const ReduceOp op = is_largest ? ReduceOp::kMax : ReduceOp::kSum;
  const at::Device device = device_of(gradients);
  double total = reduced(powers(gradients.sharded, norm_type), op, device, group);
  const double replicated = powers(gradients.replicated, norm_type);
  total = is_largest ? std::max(total, replicated) : total + replicated;
  if (stages) total = reduced(total, op, device, *stages);
  if (!is_largest) total = norm_type == 2 ? std::sqrt(total) : std::pow(total, 1 / norm_type);
  return at::scalar_tensor(total, at::kDouble);
}

at::Tensor clip_gradient_norm(const GradientParts& gradients, const ClipOptions& options,
                              Communicator& group, Communicator* stages) {
  const at::Tensor norm = gradient_norm(gradients, options.norm_type, group, stages);
  std::vector<at::Tensor> all = gradients.sharded;
  all.insert(all.end(), gradients.replicated.begin(), gradients.replicated.end());
  clip_to_norm(all, norm, options);
  return norm;
}

}  // namespace ddprun
