// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/unused_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {

UnusedParameters::UnusedParameters(const WrappedModel& model, GradientBuckets& buckets)
    : model_(model), buckets_(buckets), usage_(model.usage_mode(), model.names()) {}

void UnusedParameters::mark(const std::vector<std::size_t>& indices) {
  for (const std::size_t index : indices) mark_one(index);
}

void UnusedParameters::mark_rest() {
  for (std::size_t index = 0; index < model_.parameters().size(); ++index) mark_one(index);
}

void UnusedParameters::mark_one(std::size_t index) {
  if (buckets_.reducer().is_ready(index)) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor& gradient = model_.parameters()[index].mutable_grad();
  const bool in_slot = gradient.is_same(buckets_.slot(index));
  marked_.push_back({index, in_slot ? gradient.clone() : gradient});
  buckets_.copy_in(index);
  buckets_.reducer().mark_ready(index);
}

at::Tensor UnusedParameters::ask() {
  const UsageMode mode = usage_.mode();
  if (mode == UsageMode::kAll || (mode == UsageMode::kStatic && !used_.empty())) return {};
  return reduced_bytes(usage_.used(), ReduceOp::kMax, model_.communicator(), model_.device());
}

void UnusedParameters::hear(const at::Tensor& answer) {
  if (answer.defined()) used_ = bytes_on_host(answer);
}

void UnusedParameters::take_back() {
  const c10::NoGradGuard no_grad;
  for (const auto& [index, before] : marked_) {
    if (used_[index] != 0) continue;
    if (before.defined()) buckets_.slot(index).sub_(before);
    buckets_.reducer().take_back(index);
  }
}

void UnusedParameters::take_back_shadowed() {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (used_[i] == 0) buckets_.reducer().take_back(i);
  }
}

void UnusedParameters::settle() {
  const c10::NoGradGuard no_grad;
  for (const auto& [index, before] : marked_) {
    const at::Tensor& slot = buckets_.slot(index);
    at::Tensor& gradient = model_.parameters()[index].mutable_grad();
    if (used_[index] != 0) {
      gradient = slot;
    } else if (gradient.is_same(slot)) {
      gradient.copy_(before);
    }
  }
  marked_.clear();
}

}  // namespace ddprun::torch_adapter
