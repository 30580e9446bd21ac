// SPDX-License-Identifier: Apache-2.0
// The Reducer's memory used for gradients: each parameter has a slot in a bucket. Heavy: includes
// ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/torch/wrapped_model.h"

namespace ddprun::torch_adapter {

class GradientBuckets {
 public:
  // Collective. `model` must outlive it.
  explicit GradientBuckets(const WrappedModel& model);
  // Moves the parameters' gradients out of the memory that is freed.
  ~GradientBuckets();

  Reducer& reducer() { return reducer_; }

  // Returns a tensor of the parameter's dtype and shape over the gradient's place in its bucket. It
  // moves only in rebuild().
  const at::Tensor& slot(std::size_t index) const { return slots_[index]; }

  // Throws Error(kInvalidArgument) if the backward before did not end, or a parameter was cast or
  // moved.
  void check_ready() const;

  // Copies the parameter's gradient, or zeros if it has none, to the slot; the gradient stays. One
  // that isn't complete will be added to in the slot, so it doesn't get the reducer's factor yet.
  // Error(kUnsupported) as check_plain_gradient().
  void copy_in(std::size_t index, bool is_complete = true);
  // The same, but the slot becomes the parameter's gradient.
  void move_in(std::size_t index, bool is_complete = true);

  void clear();               // all slots
  void scale(double factor);  // all slots
  // Calls Reducer::rebuild() and moves gradients with their slots.
  void rebuild(std::span<const std::size_t> order);

  // Called with DdpOptions::zero when the averages are in the shards; then no parameter has a
  // gradient.
  void leave_shards();
  void forget_shards() { has_averages_ = false; }
  bool has_averages() const { return has_averages_; }

 private:
  at::Tensor bytes_of_bucket(std::size_t number);
  void make_slots();
  void before_sending(std::size_t number);

  const WrappedModel& model_;
  Reducer reducer_;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> sparse_as_wrapped_;  // by index in WrappedModel::sparse(): its old form
  std::vector<std::uint8_t> multiplied_;  // by index: its slot already has the reducer's factor
  bool has_averages_ = false;             // in the reducer's shards
};

}  // namespace ddprun::torch_adapter
