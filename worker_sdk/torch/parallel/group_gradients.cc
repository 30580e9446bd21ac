// SPDX-License-Identifier: Apache-2.0
// Gradients after a backward, over the ranks of a group: averages, sums, norms.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/ddp/average_plan.h"
#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/parallel/sharded_gradients.h"
#include "worker_sdk/torch/parallel/sharded_layer.h"
#include "worker_sdk/torch/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

// Gradients that lie one after the other and are being sent.
struct Bucket {
  at::Tensor memory;
  std::vector<at::Tensor> places;  // by member
  WorkPtr work;
};

Bucket fill(const std::vector<at::Tensor>& parameters, const std::vector<std::size_t>& members) {
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> counts;
  for (const std::size_t index : members) {
    const at::Tensor& parameter = parameters[index];
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined()) check_plain_gradient(parameter, concat("parameter ", index));
    flat.push_back((gradient.defined() ? gradient : at::zeros_like(parameter)).reshape({-1}));
    counts.push_back(parameter.numel());
  }
  Bucket bucket{.memory = at::cat(flat), .places = {}, .work = nullptr};
  bucket.places = bucket.memory.split_with_sizes(counts);
  return bucket;
}

void take_results(const std::vector<at::Tensor>& parameters,
                  const std::vector<std::size_t>& members, const Bucket& bucket) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const at::Tensor& parameter = parameters[members[i]];
    const at::Tensor result = bucket.places[i].view(parameter.sizes());
    if (parameter.grad().defined()) {
      parameter.grad().copy_(result);
    } else {
      parameter.mutable_grad() = result.clone();
    }
  }
}

// Called after an error. A work that failed may still write to its bucket, and so may one that
// could not be started.
void keep_unless_done(const std::vector<Bucket>& buckets, Communicator& communicator) {
  for (const Bucket& bucket : buckets) {
    try {
      if (bucket.work) {
        bucket.work->wait();
        continue;
      }
    } catch (const Error&) {
      // The same error again.
    }
    communicator.keep(std::make_shared<at::Tensor>(bucket.memory));
  }
}

// Reduces one number over the ranks. `device` is that of the communicator's buffers.
double reduced(double value, ReduceOp op, at::Device device, Communicator& group) {
  if (group.size() == 1) return value;
  const at::Tensor number =
      at::full({1}, value, at::TensorOptions().dtype(at::kDouble).device(device));
  return all_reduced(number, group, op).item<double>();
}

// Returns the sum of the p-th powers, or the largest absolute value.
double powers(const std::vector<at::Tensor>& gradients, double norm_type) {
  if (gradients.empty()) return 0;
  double total = 0;
  for (const at::Tensor& each : at::_foreach_norm(gradients, norm_type)) {
    const double norm = each.item<double>();
    if (std::isinf(norm_type)) {
      total = std::max(total, std::isnan(norm) ? INFINITY : norm);  // std::max would lose NaN
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

void torch_adapter::reduce_gradients(const std::vector<at::Tensor>& parameters, ReduceOp op,
                                     Communicator& communicator) {
  if (communicator.size() == 1 || parameters.empty()) return;
  const c10::NoGradGuard no_grad;
  communicator.follow_stream(current_torch_stream);
  std::vector<ParameterSpec> specs;
  for (const at::Tensor& parameter : parameters) {
    std::string name = concat("parameter ", specs.size());
    const DType dtype = dtype_of(parameter, name);
    specs.push_back({.name = std::move(name),
                     .count = static_cast<std::size_t>(parameter.numel()),
                     .dtype = dtype,
                     .device = comm_device_of(parameter)});
  }
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  AveragePlan average{.op = op};
  if (op == ReduceOp::kAverage) average = average_plan(communicator.backend(), communicator.size());
  const BucketPlan plan = plan_by_arrival(specs, order, limits_for(communicator.backend(), {}));

  std::vector<Bucket> buckets;
  try {
    // The next bucket is filled while those before it are being sent.
    for (const std::vector<std::size_t>& members : plan) {
      buckets.push_back(fill(parameters, members));
      if (average.factor != 1) buckets.back().memory.mul_(average.factor);
      buckets.back().work = communicator.all_reduce(
          view_of(buckets.back().memory, specs[members.front()].name), average.op, {.async = true});
    }
    for (std::size_t i = 0; i < plan.size(); ++i) {
      buckets[i].work->wait();
      take_results(parameters, plan[i], buckets[i]);
    }
  } catch (...) {
    keep_unless_done(buckets, communicator);
    throw;
  }
}

void average_gradients(const std::vector<at::Tensor>& parameters, Communicator& communicator) {
  reduce_gradients(parameters, ReduceOp::kAverage, communicator);
}

void sum_gradients(const std::vector<at::Tensor>& parameters, Communicator& group) {
  reduce_gradients(parameters, ReduceOp::kSum, group);
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
  if (!(norm_type > 0)) throw_invalid("clipping: norm_type is ", norm_type, ": it must be above 0");
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
