// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/distributed_data_parallel.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;
namespace autograd = torch::autograd;

namespace {

// The numbers of those `accumulators` (leaves' AccumulateGrad) that no backward from `outputs` can
// reach, ascending. Undefined outputs, and those without a graph, reach nothing.
std::vector<std::size_t> unreached(const std::vector<at::Tensor>& outputs,
                                   const std::vector<autograd::Node*>& accumulators) {
  std::unordered_set<autograd::Node*> seen;
  std::vector<autograd::Node*> to_visit;
  const auto reach = [&](autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    reach(autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    autograd::Node* node = to_visit.back();
    to_visit.pop_back();
    for (const autograd::Edge& edge : node->next_edges()) reach(edge.function.get());
  }
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    if (!seen.contains(accumulators[i])) result.push_back(i);
  }
  return result;
}

// The communicator's errors know of operations alone.
template <typename Send>
void say_what_for(const char* what, const Send& send) {
  try {
    send();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol && error.code() != ErrorCode::kTimeout) throw;
    throw Error(error.code(),
                concat(error.what(), "; here DistributedDataParallel sent ", what,
                       ": all ranks go forward through it equally often; one that evaluates "
                       "alone calls module()"));
  }
}

}  // namespace

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
  for (const NamedTensor& each : frozen_) {
    if (!each.tensor.requires_grad()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                concat("parameter ", each.name, " requires a gradient now, it was frozen when it ",
                       "was wrapped: its gradient would not be averaged; wrap the model anew"));
  }
}

// A walk through the module's layers: the first forwards look, later ones would pay for it.
void DdpBase::Impl::check_nothing_is_new() {
  constexpr int kMostLooks = 2;
  if (num_looks_ == kMostLooks) return;
  ++num_looks_;
  std::unordered_set<const void*> known;
  for (const at::Tensor& each : state_) known.insert(each.unsafeGetTensorImpl());
  for (const at::Tensor& each : ignored_) known.insert(each.unsafeGetTensorImpl());
  for (const auto& item : module_.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad() || known.contains(parameter.unsafeGetTensorImpl())) continue;
    throw Error(ErrorCode::kInvalidArgument,
                concat("parameter ", item.key(),
                       " was added or replaced since the model was wrapped: its gradient would not "
                       "be averaged; make the model whole before DistributedDataParallel"));
  }
}

// The same on all ranks.
void DdpBase::Impl::check_shards_are_used() const {
  if (options_.zero == ZeroStage::kOff) return;
  if (!has_optimizer_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "DdpOptions::zero needs a ShardedOptimizer, made before the first forward: no other "
        "one finds gradients");
  }
  if (has_averages_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "DdpOptions::zero: the averages of the backward before are still there: call "
        "zero_grad() after each step; to add gradients up, all backwards but the last go in "
        "no_sync");
  }
}

void DdpBase::Impl::before_forward() {
  const bool with_gradients = c10::GradMode::is_enabled();
  if (with_gradients) check_still_as_wrapped();
  if (with_gradients) check_nothing_is_new();
  if (with_gradients) check_shards_are_used();
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
    if (averages_ && device_steps_) device_steps_->mark(StepMark::kForward);
    if (averages_ && !device_steps_) steps_.forward_begins(Clock::now());
    if (averages_ && communicator_.progress()) communicator_.progress()->count_step();
    final_callback_queued_ = unused_marked_ = false;  // left over where the last backward threw
    unused_.clear();
    if (averages_ && reducer_->wants_rebuild()) form_final_buckets();
  }
  if (options_.broadcast_buffers && sends_buffers_) broadcast_buffers(buffers_from);
  // As PyTorch: after a local step buffers may differ until the next averaged one has run.
  sends_buffers_ = with_gradients && averages_;
}

void DdpBase::Impl::broadcast_buffers(int root) {
  if (!buffer_broadcast_) buffer_broadcast_.emplace(buffers_, device_);
  say_what_for("rank 0's buffers before a forward",
               [&] { buffer_broadcast_->run(root, communicator_); });
}

void DdpBase::Impl::form_final_buckets() {
  const std::vector<std::size_t>& mine = reducer_->first_arrival();
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  say_what_for("the order of the buckets before a forward",
               [&] { broadcast_bytes(bytes, 0, communicator_, device_); });
  std::vector<std::size_t> arrival(mine.size());
  std::memcpy(arrival.data(), bytes.data(), bytes.size());
  form_buckets(arrival);
}

void DdpBase::Impl::form_buckets(const std::vector<std::size_t>& order) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> kept(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].mutable_grad().is_same(slots_[i])) kept[i] = slots_[i].clone();
  }
  reducer_->rebuild(order);
  make_slots();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!kept[i].defined()) continue;
    slots_[i].copy_(kept[i]);
    parameters_[i].mutable_grad() = slots_[i];
  }
}

std::vector<std::string> DdpBase::Impl::gradient_order() const {
  std::vector<std::string> names;
  for (const std::size_t index : reducer_->order()) names.push_back(names_[index]);
  return names;
}

void DdpBase::Impl::set_gradient_order(const std::vector<std::string>& names) {
  check_still_as_wrapped();
  if (join_) {
    throw Error(ErrorCode::kInvalidArgument,
                "DdpBase::set_gradient_order: not within a join, whose other ranks may have run "
                "out");
  }
  if (options_.zero != ZeroStage::kOff) {
    throw Error(ErrorCode::kInvalidArgument,
                "DdpBase::set_gradient_order: not with DdpOptions::zero, whose buckets are formed "
                "once");
  }
  std::string lines;
  for (const std::string& name : names) lines += name + '\n';
  broadcast_bytes(lines, 0, communicator_, device_);
  std::vector<std::string> rank_0;
  std::istringstream stream(lines);
  for (std::string name; std::getline(stream, name);) rank_0.push_back(name);
  form_buckets(indices_of_order(names_, rank_0));
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

void DdpBase::Impl::begin_join(const JoinOptions& options) {
  if (join_) {
    throw Error(ErrorCode::kInvalidArgument,
                "DdpBase::join: the one before has not ended: a scope can't be inside another");
  }
  if (options_.zero != ZeroStage::kOff) {
    throw Error(ErrorCode::kUnsupported,
                "DdpBase::join: not with DdpOptions::zero, whose updates need every rank");
  }
  join_ = options;
}

void DdpBase::Impl::leave_join() {
  join_.reset();
  scale_ = 1;
}

// Agrees on what all ranks do next. Throws if one has run out of inputs and JoinOptions makes that
// the end.
JoinRound DdpBase::Impl::meet(JoinCall call) {
  const JoinRound round =
      judge(gather_bytes(static_cast<std::uint8_t>(call), communicator_, device_));
  if (join_->throw_on_early_termination && round.num_active > 0 && round.first_out >= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("rank ", round.first_out,
                       " has no more inputs, other ranks have: all end "
                       "here (JoinOptions::throw_on_early_termination)"));
  }
  return round;
}

JoinResult DdpBase::Impl::finish_join() {
  JoinResult result;
  JoinRound round = meet(JoinCall::kRanOut);
  for (; round.num_active > 0; round = meet(JoinCall::kShadow)) {
    shadow(round);
    if (round.averages) ++result.num_shadowed;
  }
  result.source_rank = round.source_rank;
  // Parameters, then buffers.
  const std::size_t num_own = options_.broadcast_buffers ? 0 : buffers_.size();
  broadcast_tensors({state_.begin(), state_.end() - static_cast<std::ptrdiff_t>(num_own)},
                    round.source_rank, communicator_, device_);
  leave_join();
  return result;
}

// Takes part while others go forward and backward: issues the same operations in the same order.
void DdpBase::Impl::shadow(const JoinRound& round) {
  if (round.averages && communicator_.progress()) communicator_.progress()->count_step();
  if (round.averages && reducer_->wants_rebuild()) form_final_buckets();
  if (options_.broadcast_buffers && sends_buffers_) broadcast_buffers(round.source_rank);
  sends_buffers_ = round.averages;
  if (!round.averages) return;
  const c10::NoGradGuard no_grad;
  zero_grad();
  for (std::size_t b = 0; b < reducer_->num_buckets(); ++b) bytes_of_bucket(b).zero_();
  for (std::size_t i = parameters_.size(); i-- > 0;) reducer_->mark_ready(i);
  usage_->end_iteration();
  const at::Tensor answer = ask_for_usage();
  reducer_->finalize();
  const std::vector<std::uint8_t> used = used_anywhere(answer);
  average_sparse_gradients();
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] == 0) reducer_->take_back(i);
  }
  if (communicator_.progress()) communicator_.progress()->end_counted_step();
}

void DdpBase::Impl::set_comm_hook(std::shared_ptr<CommHook> hook) {
  if (join_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "DdpBase::register_comm_hook: not within a join, whose other ranks may have run out");
  }
  if (options_.zero != ZeroStage::kOff) {
    throw Error(ErrorCode::kUnsupported, "DdpBase::register_comm_hook: not with DdpOptions::zero");
  }
  reducer_->set_hook(std::move(hook));
}

void DdpBase::Impl::zero_grad() {
  for (auto* tensors : {&parameters_, &ignored_}) {
    for (at::Tensor& parameter : *tensors) parameter.mutable_grad().reset();
  }
  for (NamedTensor& each : sparse_) each.tensor.mutable_grad().reset();
  has_averages_ = false;
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
StepStatistics DdpBase::statistics() const { return impl_->statistics(); }
void DdpBase::waited_for_data(Clock::duration time) { impl_->waited_for_data(time); }
const BucketPlan& DdpBase::bucket_plan() const { return impl_->reducer().plan(); }
std::vector<std::string> DdpBase::gradient_order() const { return impl_->gradient_order(); }
void DdpBase::set_gradient_order(const std::vector<std::string>& names) {
  impl_->set_gradient_order(names);
}
const std::vector<at::Tensor>& DdpBase::parameters() const { return impl_->parameters(); }

std::size_t DdpBase::gradient_bytes() const { return impl_->reducer().size_bytes(); }
ZeroStage DdpBase::zero() const { return impl_->zero(); }

std::vector<TensorView> DdpBase::gradient_buckets() const {
  std::vector<TensorView> buckets;
  for (std::size_t b = 0; b < impl_->reducer().num_buckets(); ++b) {
    buckets.push_back(impl_->reducer().bucket(b));
  }
  return buckets;
}

DdpBase::NoSync::NoSync(DdpBase& ddp) : ddp_(ddp) { ++ddp_.impl_->no_sync_depth_; }
DdpBase::NoSync::~NoSync() { --ddp_.impl_->no_sync_depth_; }

DdpBase::Join::Join(DdpBase& ddp, const JoinOptions& options) : ddp_(ddp) {
  ddp_.impl_->begin_join(options);
}
DdpBase::Join::~Join() {
  if (open_) ddp_.impl_->leave_join();
}
JoinResult DdpBase::Join::finish() {
  if (!open_) throw Error(ErrorCode::kInvalidArgument, "DdpBase::Join: finish() was called twice");
  JoinResult result = ddp_.impl_->finish_join();
  open_ = false;
  return result;
}

}  // namespace ddprun
