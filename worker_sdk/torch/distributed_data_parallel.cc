// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/distributed_data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/tensor_exchange.h"
#include "worker_sdk/torch/used_parameters.h"

namespace ddprun {

using namespace torch_adapter;
namespace autograd = torch::autograd;

namespace {

UsageMode mode_of(const DdpOptions& options) {
  if (options.static_graph) return UsageMode::kStatic;
  return options.find_unused_parameters ? UsageMode::kFindUnused : UsageMode::kAll;
}

// What else the ranks must agree on.
std::vector<ModelEntry> entries_of(const DdpOptions& options) {
  const auto on = [](bool value) { return std::string(value ? "on" : "off"); };
  return {{"option find_unused_parameters", on(options.find_unused_parameters)},
          {"option static_graph", on(options.static_graph)},
          {"option broadcast_buffers", on(options.broadcast_buffers)}};
}

}  // namespace

// On the accumulator of a parameter's gradient. A type of its own: to be known again.
class DdpBase::Impl::GradientHook final : public autograd::FunctionPostHook {
 public:
  GradientHook(Impl& ddp, std::size_t index) : ddp_(ddp), index_(index) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    ddp_.on_gradient(index_);
    return outputs;
  }

 private:
  Impl& ddp_;
  const std::size_t index_;
};

DdpBase::Impl::Impl(torch::nn::Module& module, Communicator& communicator,
                    const DdpOptions& options)
    : communicator_(communicator), options_(options) {
  communicator_.follow_stream(current_torch_stream);
  const ModelState state = state_of(module, options_.ignored);
  for (const NamedState& buffer : state.buffers) buffers_.push_back(buffer.tensor);
  state_ = state.tensors();
  ignored_ = state.ignored_parameters;
  if (!state_.empty()) device_ = state_.front().device();
  check_same_model(state, entries_of(options_), communicator_, device_);
  const std::vector<ParameterSpec> trainable = trainable_parameters(state);
  check_nobody_averages();
  broadcast_tensors(state_, 0, communicator_, device_);
  reducer_.emplace(communicator_, trainable, options_.buckets);
  usage_.emplace(mode_of(options_), names_);
  if (usage_->mode() == UsageMode::kFindUnused) {
    // The order of arrival changes with the graph: buckets for good, the last parameters first.
    std::vector<std::size_t> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    reducer_->rebuild(order);
  }
  if (options_.comm_hook) reducer_->set_hook(options_.comm_hook);
  make_slots();
  for (std::size_t index = 0; index < parameters_.size(); ++index) install_hook(index);
}

DdpBase::Impl::~Impl() {
  *self_ = nullptr;
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  // Gradients lie in the communicator's memory, which goes now.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.is_same(slots_[i])) gradient = at::Tensor();
  }
}

std::vector<ParameterSpec> DdpBase::Impl::trainable_parameters(const ModelState& state) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, parameter] : state.parameters) {
    if (!parameter.requires_grad()) {
      frozen_.push_back({name, parameter});
      continue;
    }
    // One that several modules share is listed under each name; it has one gradient.
    const at::Tensor& tensor = parameter;
    const auto same = [&](const at::Tensor& known) { return known.is_same(tensor); };
    if (std::any_of(parameters_.begin(), parameters_.end(), same)) continue;
    ParameterSpec spec;
    spec.name = name;
    spec.count = static_cast<std::size_t>(parameter.numel());
    spec.dtype = dtype_of(parameter, "parameter " + name);
    spec.device = comm_device_of(parameter);
    spec.shape = parameter.sizes().vec();
    specs.push_back(std::move(spec));
    parameters_.push_back(parameter);
    names_.push_back(name);
  }
  return specs;
}

at::Tensor DdpBase::Impl::bytes_of_bucket(std::size_t number) {
  const TensorView bucket = reducer_->bucket(number);
  const auto bytes = static_cast<std::int64_t>(bucket.size_bytes());
  return at::from_blob(bucket.data, {bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void DdpBase::Impl::make_slots() {
  // Not views of a bucket tensor but tensors of their own over its memory: autograd refuses to
  // detach a view in place, which Optimizer::zero_grad(false) does.
  for (std::size_t b = 0; b < reducer_->num_buckets(); ++b) bytes_of_bucket(b).zero_();
  slots_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const auto options = at::TensorOptions().dtype(parameter.scalar_type()).device(device_);
    void* data = reducer_->gradient(i).data;
    // PyTorch's gradient layout contract: the parameter's strides where it is dense.
    slots_.push_back(parameter.is_non_overlapping_and_dense()
                         ? at::from_blob(data, parameter.sizes(), parameter.strides(), options)
                         : at::from_blob(data, parameter.sizes(), options));
  }
}

void DdpBase::Impl::check_nobody_averages() const {
  if (parameters_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model has no parameter that requires a gradient: there is nothing to average; "
                "are its layers registered (register_module, register_parameter)?");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& hook : autograd::impl::grad_accumulator(parameters_[i])->post_hooks()) {
      if (dynamic_cast<const GradientHook*>(hook.get()) == nullptr) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  concat("another DistributedDataParallel averages the gradient of ", names_[i],
                         ": wrap a model once, or destroy that one first"));
    }
  }
}

void DdpBase::Impl::install_hook(std::size_t index) {
  auto accumulator = autograd::impl::grad_accumulator(parameters_[index]);
  const std::uintptr_t key =
      accumulator->add_post_hook(std::make_unique<GradientHook>(*this, index));
  accumulators_.push_back(accumulator.get());
  hooks_.push_back({std::move(accumulator), key});
}

void DdpBase::Impl::on_gradient(std::size_t index) {
  const bool defined = parameters_[index].mutable_grad().defined();
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
  put_into_slot(index);
  if (usage_->on_gradient(index)) reducer_->mark_ready(index);
}

void DdpBase::Impl::put_into_slot(std::size_t index) {
  const c10::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.defined()) {
    slots_[index].zero_();
  } else if (gradient.layout() != c10::kStrided) {
    throw Error(ErrorCode::kUnsupported,
                concat("the gradient of ", names_[index],
                       " is sparse: use a dense one (sparse(false) in embedding options)"));
  } else if (gradient.is_same(slots_[index])) {
    return;
  } else {
    slots_[index].copy_(gradient);
  }
  gradient = slots_[index];
}

// They contribute what they have, from earlier backwards, or zeros. What they have stays theirs
// until it is known whether another rank uses them.
void DdpBase::Impl::mark_unused(const std::vector<std::size_t>& indices) {
  const c10::NoGradGuard no_grad;
  for (const std::size_t index : indices) {
    if (reducer_->is_ready(index)) continue;
    const at::Tensor& gradient = parameters_[index].mutable_grad();
    const bool in_slot = gradient.is_same(slots_[index]);
    unused_.push_back({index, in_slot ? gradient.clone() : gradient});
    if (!gradient.defined()) slots_[index].zero_();
    if (gradient.defined() && !in_slot) slots_[index].copy_(gradient);
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
  std::vector<std::uint8_t> used;
  if (reducer_->is_complete()) used = used_anywhere();
  reducer_->finalize(usage_->advice());
  const auto parts = steps_.step_ends(reducer_->trace());
  take_back_unused(used);
  scale_averages();
  settle_unused(used);
  usage_->end_iteration();
  if (WorkerProgress* progress = communicator_.progress()) {
    if (parts) progress->add_parts(*parts);
    progress->end_counted_step();
  }
}

// By parameter. Collective where it isn't known: kAll needs not know, kStatic only once.
std::vector<std::uint8_t> DdpBase::Impl::used_anywhere() {
  if (usage_->mode() == UsageMode::kAll || !statically_used_.empty()) return statically_used_;
  std::vector<std::uint8_t> used = usage_->used();
  reduce_bytes(used, ReduceOp::kMax, communicator_, device_);
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

// What a hook had kept of parameters that nobody uses now, and sent: their averages are not
// applied.
void DdpBase::Impl::take_back_unused(const std::vector<std::uint8_t>& used) {
  const c10::NoGradGuard no_grad;
  for (const auto& [index, before] : unused_) {
    if (used[index] != 0) continue;
    if (before.defined()) slots_[index].sub_(before);
    reducer_->take_back(index);
  }
}

void DdpBase::Impl::after_forward(const std::vector<at::Tensor>& outputs) {
  if (!averages_ || !c10::GradMode::is_enabled() || usage_->mode() == UsageMode::kAll) return;
  if (usage_->mode() == UsageMode::kFindUnused) {
    usage_->expect_unused(unreached(outputs, accumulators_));
  }
  // From the outputs on, the backward is the outermost one: one that runs inside another (of a
  // checkpointed part) ends before all gradients are there.
  for (const at::Tensor& output : outputs) {
    // A hook on a leaf would stay there beyond this iteration.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([self = self_](const at::Tensor&) {
      const auto* wanted = autograd::get_current_graph_task_exec_info();
      const bool for_parameters = wanted == nullptr || wanted->empty();  // else autograd::grad()
      if (for_parameters && *self != nullptr && (*self)->averages_) (*self)->end_backward_later();
    });
  }
}

// Else gradients would, without a word, not be averaged: autograd drops the hooks of a parameter
// that is cast or moved.
void DdpBase::Impl::check_still_as_wrapped() const {
  if (reducer_->is_under_way()) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("the backward before did not end on rank ", communicator_.rank(),
                       ", it threw: the ranks' gradients are no longer of the same step; leave the "
                       "program and go on from a checkpoint"));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor &parameter = parameters_[i], &slot = slots_[i];
    if (parameter.scalar_type() == slot.scalar_type() && parameter.device() == slot.device() &&
        parameter.sizes() == slot.sizes()) {
      continue;
    }
    const auto describe = [](const at::Tensor& tensor) {
      return concat(c10::toString(tensor.scalar_type()), ' ', tensor.sizes(), " on ",
                    tensor.device());
    };
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("parameter ", names_[i], " is ", describe(parameter), " now, it was wrapped as ",
               describe(slot), ": cast and move a model before DistributedDataParallel"));
  }
  for (const NamedState& each : frozen_) {
    if (!each.tensor.requires_grad()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                concat("parameter ", each.name, " requires a gradient now, it was frozen when it ",
                       "was wrapped: its gradient would not be averaged; wrap the model anew"));
  }
}

void DdpBase::Impl::before_forward() {
  const bool with_gradients = c10::GradMode::is_enabled();
  if (with_gradients) check_still_as_wrapped();
  int buffers_from = 0;
  if (join_) {
    const bool averaged = with_gradients && no_sync_depth_ == 0;
    const JoinRound round = meet(averaged ? JoinCall::kAveraged : JoinCall::kLocal);
    buffers_from = round.source_rank;
    scale_ = join_->divide_by_initial_world_size
                 ? 1
                 : static_cast<double>(communicator_.size()) / round.num_active;
  }
  if (with_gradients) {
    averages_ = no_sync_depth_ == 0;
    if (averages_) steps_.forward_begins(Clock::now());
    if (averages_ && communicator_.progress()) communicator_.progress()->count_step();
    final_callback_queued_ = unused_marked_ = false;  // left over where the last backward threw
    unused_.clear();
    if (averages_ && reducer_->wants_rebuild()) form_final_buckets();
  }
  if (options_.broadcast_buffers && sends_buffers_) {
    broadcast_tensors(buffers_, buffers_from, communicator_, device_);
  }
  // As PyTorch: after a local step buffers may differ until the next averaged one has run.
  sends_buffers_ = with_gradients && averages_;
}

void DdpBase::Impl::form_final_buckets() {
  const std::vector<std::size_t>& mine = reducer_->first_arrival();
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  broadcast_bytes(bytes, 0, communicator_, device_);
  std::vector<std::size_t> arrival(mine.size());
  std::memcpy(arrival.data(), bytes.data(), bytes.size());

  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> kept(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].mutable_grad().is_same(slots_[i])) kept[i] = slots_[i].clone();
  }
  reducer_->rebuild(arrival);
  make_slots();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!kept[i].defined()) continue;
    slots_[i].copy_(kept[i]);
    parameters_[i].mutable_grad() = slots_[i];
  }
}

void DdpBase::Impl::set_comm_hook(std::shared_ptr<CommHook> hook) {
  if (join_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "DdpBase::register_comm_hook: not within a join, whose other ranks may have run out");
  }
  reducer_->set_hook(std::move(hook));
}

void DdpBase::Impl::zero_grad() {
  for (auto* tensors : {&parameters_, &ignored_}) {
    for (at::Tensor& parameter : *tensors) parameter.mutable_grad().reset();
  }
}

void DdpBase::Impl::scale_averages() {
  if (scale_ == 1) return;
  const c10::NoGradGuard no_grad;
  for (at::Tensor& slot : slots_) slot.mul_(scale_);
}

DdpBase::DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options)
    : impl_(std::make_unique<Impl>(module, communicator, options)) {}
DdpBase::~DdpBase() = default;

void DdpBase::zero_grad() { impl_->zero_grad(); }
void DdpBase::before_forward() { impl_->before_forward(); }
void DdpBase::after_forward(const std::vector<at::Tensor>& outputs) {
  impl_->after_forward(outputs);
}
void DdpBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  impl_->set_comm_hook(std::move(hook));
}
const GradientTraffic& DdpBase::traffic() const { return impl_->reducer().traffic(); }
const IterationTrace& DdpBase::trace() const { return impl_->reducer().trace(); }
StepStatistics DdpBase::statistics() const { return impl_->steps().statistics(); }
void DdpBase::waited_for_data(Clock::duration time) { impl_->steps().waited_for_data(time); }
const BucketPlan& DdpBase::bucket_plan() const { return impl_->reducer().plan(); }
const std::vector<at::Tensor>& DdpBase::parameters() const { return impl_->parameters(); }

std::vector<TensorView> DdpBase::gradient_buckets() const {
  std::vector<TensorView> buckets;
  for (std::size_t b = 0; b < impl_->reducer().num_buckets(); ++b) {
    buckets.push_back(impl_->reducer().bucket(b));
  }
  return buckets;
}

DdpBase::NoSync::NoSync(DdpBase& ddp) : ddp_(ddp) { ++ddp_.impl_->no_sync_depth_; }
DdpBase::NoSync::~NoSync() { --ddp_.impl_->no_sync_depth_; }

}  // namespace ddprun
