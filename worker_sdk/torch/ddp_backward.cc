// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's work from the first gradient of a backward to the averages.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/sparse_gradients.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;
namespace autograd = torch::autograd;

void DdpBase::Impl::on_gradient(std::size_t index) {
  if (index >= parameters_.size()) {  // a sparse one: its turn comes in end_backward()
    const NamedTensor& its = sparse_[index - parameters_.size()];
    if (checks_nan_ && its.tensor.grad().defined()) check_no_nan(its.tensor.grad(), its.name);
    if (averages_) end_backward_later();
    return;
  }
  const bool defined = parameters_[index].mutable_grad().defined();
  if (defined && checks_nan_) check_no_nan(parameters_[index].grad(), names_[index]);
  if (!averages_) {
    if (defined) usage_->on_local_gradient(index);
    return;
  }
  end_backward_later();
  if (!unused_marked_) {
    unused_marked_ = true;
    if (!usage_->learning()) mark_unused(usage_->unused());
  }
  if (!defined && usage_->mode() != UsageMode::kAll) return;  // the same as not to be reached
  const bool is_complete = usage_->on_gradient(index);
  if (options_.zero != ZeroStage::kGradients) put_into_slot(index, is_complete);
  if (is_complete) reducer_->mark_ready(index);
}

void DdpBase::Impl::check_no_nan(const at::Tensor& gradient, const std::string& name) {
  const c10::NoGradGuard no_grad;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (values.layout() != c10::kStrided || !at::isnan(values).any().item<bool>()) return;
  const Error error(ErrorCode::kInvalidArgument,
                    concat("the gradient of ", name, " on rank ", communicator_.rank(),
                           " has NaN, before it is averaged"));
  communicator_.abort(error.what());
  throw error;
}

// One that isn't complete is added to there.
void DdpBase::Impl::put_into_slot(std::size_t index, bool is_complete) {
  const c10::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (gradient.defined()) {
    if (gradient.is_same(slots_[index])) return;
    check_plain_gradient(parameters_[index], names_[index]);
    is_complete ? copy_into_slot(index, gradient) : void(slots_[index].copy_(gradient));
  } else {
    slots_[index].zero_();
  }
  gradient = slots_[index];
}

// With the factor that an average needs, in the one pass.
void DdpBase::Impl::copy_into_slot(std::size_t index, const at::Tensor& gradient) {
  copy_times(slots_[index], gradient, reducer_->factor());
  multiplied_[index] = 1;
}

// ZeRO-2: until its bucket is sent a gradient lies where autograd put it, and nowhere after.
void DdpBase::Impl::before_sending(std::size_t number) {
  const c10::NoGradGuard no_grad;
  const double factor = reducer_->factor();
  std::vector<at::Tensor> rest;  // that were in their slots already
  for (const std::size_t index : reducer_->plan()[number]) {
    if (options_.zero == ZeroStage::kGradients) {
      put_into_slot(index);
      parameters_[index].mutable_grad().reset();
    }
    const bool is_multiplied = std::exchange(multiplied_[index], 0) != 0;
    if (!is_multiplied && factor != 1) rest.push_back(slots_[index]);
  }
  if (!rest.empty()) at::_foreach_mul_(rest, factor);
}

// The averages are in the shards. Drops this rank's own gradients, so that nobody takes them for
// averages.
void DdpBase::Impl::forget_gradients() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

// Unused parameters contribute their gradient from earlier backwards, or zeros. They keep it until
// it is known whether another rank uses them.
void DdpBase::Impl::mark_unused(const std::vector<std::size_t>& indices) {
  const c10::NoGradGuard no_grad;
  for (const std::size_t index : indices) {
    if (reducer_->is_ready(index)) continue;
    const at::Tensor& gradient = parameters_[index].mutable_grad();
    const bool in_slot = gradient.is_same(slots_[index]);
    unused_.push_back({index, in_slot ? gradient.clone() : gradient});
    if (!gradient.defined()) slots_[index].zero_();
    if (gradient.defined() && !in_slot) {
      check_plain_gradient(parameters_[index], names_[index]);
      copy_into_slot(index, gradient);
    }
    reducer_->mark_ready(index);
  }
}

void DdpBase::Impl::end_backward_later() {
  if (final_callback_queued_) return;
  final_callback_queued_ = true;
  autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
}

void DdpBase::Impl::end_backward() {
  final_callback_queued_ = unused_marked_ = false;
  if (usage_->learning()) {
    for (const std::size_t index : usage_->learn()) reducer_->mark_ready(index);
    mark_unused(usage_->unused());
  }
  if (usage_->mode() == UsageMode::kFindUnused) {  // reached by the forward, but not by the loss
    for (std::size_t index = 0; index < parameters_.size(); ++index) mark_unused({index});
  }
  at::Tensor answer;
  if (reducer_->is_complete()) answer = ask_for_usage();
  reducer_->finalize(usage_->advice());
  count_step();
  // If this rank has used all parameters itself, it need not wait for an answer.
  std::vector<std::uint8_t> used;
  if (!unused_.empty() || usage_->mode() == UsageMode::kStatic) used = used_anywhere(answer);
  take_back_unused(used);
  scale_averages();
  average_sparse_gradients();
  settle_unused(used);
  usage_->end_iteration();
  if (options_.zero != ZeroStage::kOff) {
    forget_gradients();
    has_averages_ = true;
  }
  if (communicator_.progress() != nullptr) communicator_.progress()->end_counted_step();
}

void DdpBase::Impl::count_step() {
  if (!device_steps_) return tell_parts(steps_.step_ends(reducer_->trace()));
  std::uint64_t num_bytes = 0;
  for (const auto& bucket : reducer_->trace().buckets) num_bytes += bucket.size_bytes;
  device_steps_->step_ends(num_bytes, std::exchange(loader_, {}));
  count_device_steps();
}

// Those that the device has done since.
void DdpBase::Impl::count_device_steps() {
  while (const auto step = device_steps_->take()) {
    if (step->forward) steps_.forward_begins(*step->forward);
    steps_.waited_for_data(step->loader);
    tell_parts(steps_.step_ends(step->trace));
  }
}

void DdpBase::Impl::tell_parts(const std::optional<StepParts>& parts) {
  if (parts && communicator_.progress() != nullptr) communicator_.progress()->add_parts(*parts);
}

StepStatistics DdpBase::Impl::statistics() {
  if (device_steps_) count_device_steps();
  return steps_.statistics();
}

void DdpBase::Impl::waited_for_data(Clock::duration time) {
  if (device_steps_) {
    loader_ += time;
  } else {
    steps_.waited_for_data(time);
  }
}

// Which parameters any rank has used, for used_anywhere(). Collective where it isn't known, else
// undefined: kAll needs not know, kStatic only once. Nobody waits here.
at::Tensor DdpBase::Impl::ask_for_usage() {
  if (usage_->mode() == UsageMode::kAll || !statically_used_.empty()) return {};
  return reduced_bytes(usage_->used(), ReduceOp::kMax, communicator_, device_);
}

// By parameter; empty in kAll. Waits for the device.
std::vector<std::uint8_t> DdpBase::Impl::used_anywhere(const at::Tensor& answer) {
  if (!answer.defined()) return statically_used_;
  std::vector<std::uint8_t> used = bytes_on_host(answer);
  if (usage_->mode() == UsageMode::kStatic) statically_used_ = used;
  return used;
}

void DdpBase::Impl::settle_unused(const std::vector<std::uint8_t>& used) {
  const c10::NoGradGuard no_grad;
  for (const auto& [index, before] : unused_) {
    at::Tensor& gradient = parameters_[index].mutable_grad();
    if (used[index] != 0) {
      gradient = slots_[index];
    } else if (gradient.is_same(slots_[index])) {
      gradient.copy_(before);
    }
  }
  unused_.clear();
}

// Gives a hook back what it had kept and has sent for parameters that nobody uses now: their
// averages are not applied.
void DdpBase::Impl::take_back_unused(const std::vector<std::uint8_t>& used) {
  const c10::NoGradGuard no_grad;
  for (const auto& [index, before] : unused_) {
    if (used[index] != 0) continue;
    if (before.defined()) slots_[index].sub_(before);
    reducer_->take_back(index);
  }
}

void DdpBase::Impl::average_sparse_gradients() {
  for (NamedTensor& each : sparse_) {
    average_sparse_gradient(each.tensor, each.name, scale_ / communicator_.size(), communicator_);
  }
}

void DdpBase::Impl::scale_averages() {
  if (scale_ == 1) return;
  const c10::NoGradGuard no_grad;
  for (at::Tensor& slot : slots_) slot.mul_(scale_);
}

}  // namespace ddprun
