// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/gradient_buckets.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <numeric>
#include <utility>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {

GradientBuckets::GradientBuckets(const WrappedModel& model)
    : model_(model),
      reducer_(model.communicator(), model.specs(), model.options().buckets,
               {model.options().zero, [this](std::size_t number) { before_sending(number); }}),
      multiplied_(model.parameters().size()) {
  if (model_.usage_mode() == UsageMode::kFindUnused) {
    // The order of arrival changes with the graph, so buckets are formed for good, the last
    // parameters first.
    std::vector<std::size_t> order(model_.parameters().size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    reducer_.rebuild(order);
  }
  if (model_.options().comm_hook) reducer_.set_hook(model_.options().comm_hook);
  make_slots();
  for (const NamedTensor& each : model_.sparse()) {
    sparse_as_wrapped_.push_back(each.tensor.detach());
  }
}

GradientBuckets::~GradientBuckets() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    at::Tensor& gradient = model_.parameters()[i].mutable_grad();
    if (gradient.is_same(slots_[i])) gradient.reset();
  }
}

at::Tensor GradientBuckets::bytes_of_bucket(std::size_t number) {
  const TensorView bucket = reducer_.bucket(number);
  const auto bytes = static_cast<std::int64_t>(bucket.size_bytes());
  return at::from_blob(bucket.data, {bytes},
                       at::TensorOptions().dtype(at::kByte).device(model_.device()));
}

void GradientBuckets::clear() {
  for (std::size_t b = 0; b < reducer_.num_buckets(); ++b) bytes_of_bucket(b).zero_();
}

void GradientBuckets::make_slots() {
  // Slots aren't views of a bucket tensor but separate tensors over its memory: autograd refuses to
  // detach a view in place, which Optimizer::zero_grad(false) does.
  clear();
  slots_.clear();
  for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
    const at::Tensor& parameter = model_.parameters()[i];
    const auto options = at::TensorOptions().dtype(parameter.scalar_type()).device(model_.device());
    void* data = reducer_.gradient(i).data;
    // PyTorch's gradient layout contract: the parameter's strides if it is dense.
    slots_.push_back(parameter.is_non_overlapping_and_dense()
                         ? at::from_blob(data, parameter.sizes(), parameter.strides(), options)
                         : at::from_blob(data, parameter.sizes(), options));
  }
}

// Checks that gradients can be averaged. Otherwise some would silently not be: autograd drops the
// hooks of a parameter that is cast or moved.
void GradientBuckets::check_ready() const {
  if (reducer_.is_under_way()) {
    throw_invalid("the backward before did not end on rank ", model_.communicator().rank(),
                  ", it threw: the ranks' gradients are no longer of the same step; leave the "
                  "program and go on from a checkpoint");
  }
  const auto check = [](const std::string& name, const at::Tensor& parameter,
                        const at::Tensor& as_wrapped) {
    if (parameter.scalar_type() == as_wrapped.scalar_type() &&
        parameter.device() == as_wrapped.device() && parameter.sizes() == as_wrapped.sizes()) {
      return;
    }
    const auto describe = [](const at::Tensor& tensor) {
      return concat(c10::toString(tensor.scalar_type()), ' ', tensor.sizes(), " on ",
                    tensor.device());
    };
    throw_invalid("parameter ", name, " is ", describe(parameter), " now, it was wrapped as ",
                  describe(as_wrapped), ": cast and move a model before DistributedDataParallel");
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    check(model_.name(i), model_.parameters()[i], slots_[i]);
  }
  for (std::size_t i = 0; i < sparse_as_wrapped_.size(); ++i) {
    check(model_.sparse()[i].name, model_.sparse()[i].tensor, sparse_as_wrapped_[i]);
  }
}

void GradientBuckets::copy_in(std::size_t index, bool is_complete) {
  const c10::NoGradGuard no_grad;
  const at::Tensor &parameter = model_.parameters()[index], &slot = slots_[index];
  const at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) {
    slot.zero_();
    return;
  }
  if (gradient.is_same(slot)) return;
  check_plain_gradient(parameter, model_.name(index));
  if (!is_complete) {
    slot.copy_(gradient);
    return;
  }
  copy_times(slot, gradient, reducer_.factor());  // the one pass that an average needs anyway
  multiplied_[index] = 1;
}

void GradientBuckets::move_in(std::size_t index, bool is_complete) {
  at::Tensor& gradient = model_.parameters()[index].mutable_grad();
  if (gradient.is_same(slots_[index])) return;
  copy_in(index, is_complete);
  gradient = slots_[index];
}

// ZeRO-2: a gradient lies where autograd put it until its bucket is sent, and is gone afterwards.
void GradientBuckets::before_sending(std::size_t number) {
  const c10::NoGradGuard no_grad;
  const double factor = reducer_.factor();
  std::vector<at::Tensor> rest;  // those that were in their slots already
  for (const std::size_t index : reducer_.plan()[number]) {
    if (model_.options().zero == ZeroStage::kGradients) {
      move_in(index);
      model_.parameters()[index].mutable_grad().reset();
    }
    const bool is_multiplied = std::exchange(multiplied_[index], 0) != 0;
    if (!is_multiplied && factor != 1) rest.push_back(slots_[index]);
  }
  if (!rest.empty()) at::_foreach_mul_(rest, factor);
}

void GradientBuckets::scale(double factor) {
  if (factor == 1) return;
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& slot : slots_) slot.mul_(factor);
}

void GradientBuckets::rebuild(std::span<const std::size_t> order) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> kept(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (model_.parameters()[i].mutable_grad().is_same(slots_[i])) kept[i] = slots_[i].clone();
  }
  reducer_.rebuild(order);
  make_slots();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!kept[i].defined()) continue;
    slots_[i].copy_(kept[i]);
    model_.parameters()[i].mutable_grad() = slots_[i];
  }
}

// Drops this rank's own gradients, so that nobody takes them for averages.
void GradientBuckets::leave_shards() {
  for (const at::Tensor& parameter : model_.parameters()) parameter.mutable_grad().reset();
  has_averages_ = true;
}

}  // namespace ddprun::torch_adapter
