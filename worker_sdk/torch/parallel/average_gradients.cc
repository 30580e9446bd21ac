// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/average_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <numeric>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/ddp/average_plan.h"
#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

// Gradients one after the other, on their way.
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

// After an error: their memory is theirs until they have ended, which the error sees to.
void drain(const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    try {
      if (bucket.work) bucket.work->wait();
    } catch (const Error&) {
      // The same one again.
    }
  }
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
    // The next bucket is filled while those before it travel.
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
    drain(buckets);
    throw;
  }
}

void average_gradients(const std::vector<at::Tensor>& parameters, Communicator& communicator) {
  reduce_gradients(parameters, ReduceOp::kAverage, communicator);
}

}  // namespace ddprun
