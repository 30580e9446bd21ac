// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's work from the first gradient of a backward to the averages. Heavy:
// includes ATen.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/torch/gradient_buckets.h"
#include "worker_sdk/torch/step_times.h"
#include "worker_sdk/torch/unused_parameters.h"
#include "worker_sdk/torch/wrapped_model.h"

namespace ddprun::torch_adapter {

// Hooks on the accumulators of the parameters' gradients, as long as it lives.
class DdpBackward {
 public:
  // Error(kInvalidArgument): nothing of the model is to be averaged, or another one does it.
  static void check_nobody_averages(const WrappedModel& model);

  // All must outlive this object.
  DdpBackward(const WrappedModel& model, GradientBuckets& buckets, StepTimes& times);
  ~DdpBackward();
  DdpBackward(const DdpBackward&) = delete;
  DdpBackward& operator=(const DdpBackward&) = delete;

  // A forward begins whose backward averages the gradients, or doesn't.
  void expect(bool averages);
  // Times this, from now on.
  void scale_averages(double factor) { scale_ = factor; }
  // `outputs`: the loss is made from them.
  void after_forward(const std::vector<at::Tensor>& outputs);

  // Takes part in a backward of other ranks, with zeros for gradients: issues the same operations
  // in the same order.
  void shadow();

 private:
  class GradientHook;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  struct Hook {
    Accumulator accumulator;  // second owner: the graph; kept, or the hook would go with the graph
    std::uintptr_t key;
  };

  void install_hook(const at::Tensor& parameter);
  void on_gradient(std::size_t index);
  void check_no_nan(const at::Tensor& gradient, const std::string& name);
  void end_later();
  void end();
  void average_sparse_gradients();

  // Constant after construction.
  const WrappedModel& model_;
  GradientBuckets& buckets_;
  StepTimes& times_;
  const bool checks_nan_;
  std::vector<Hook> hooks_;
  std::vector<torch::autograd::Node*> accumulators_;  // those of hooks_ that the buckets are for

  UnusedParameters unused_;
  bool averages_ = true;  // the coming backward does
  double scale_ = 1;

  // State of the current backward.
  bool end_queued_ = false;
  bool unused_marked_ = false;

  // Second owners: hooks of graphs that may outlive this object, which it then tells.
  std::shared_ptr<DdpBackward*> self_ = std::make_shared<DdpBackward*>(this);
};

}  // namespace ddprun::torch_adapter
