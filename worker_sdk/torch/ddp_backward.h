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

// Sets hooks on the accumulators of the parameters' gradients, and removes them in its destructor.
class DdpBackward {
 public:
  // Throws Error(kInvalidArgument) if nothing of the model is to be averaged, or another object
  // does it.
  static void check_nobody_averages(const WrappedModel& model);

  // All must outlive this object.
  DdpBackward(const WrappedModel& model, GradientBuckets& buckets, StepTimes& times);
  ~DdpBackward();
  DdpBackward(const DdpBackward&) = delete;
  DdpBackward& operator=(const DdpBackward&) = delete;

  // Says that a forward begins, and whether its backward averages the gradients.
  void expect(bool averages);
  // Multiplies all averages by this factor from now on.
  void scale_averages(double factor) { scale_ = factor; }
  // Tells the outputs from which the loss is made.
  void after_forward(const std::vector<at::Tensor>& outputs);

  // Takes part in a backward of other ranks, with zeros for gradients: it issues the same
  // operations in the same order.
  void shadow();

 private:
  class GradientHook;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  struct Hook {
    Accumulator accumulator;  // shared with the graph; kept so that the hook outlives the graph
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
  std::vector<torch::autograd::Node*> accumulators_;  // of parameters in buckets

  UnusedParameters unused_;
  bool averages_ = true;  // the coming backward averages
  double scale_ = 1;

  // State of the current backward.
  bool end_queued_ = false;
  bool unused_marked_ = false;

  // Shared with hooks of graphs that may outlive this object. The destructor tells them.
  std::shared_ptr<DdpBackward*> self_ = std::make_shared<DdpBackward*>(this);
};

}  // namespace ddprun::torch_adapter
