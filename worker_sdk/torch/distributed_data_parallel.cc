// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/distributed_data_parallel.h"

#include <c10/core/GradMode.h>

#include <cstring>
#include <sstream>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/ddp_backward.h"
#include "worker_sdk/torch/gradient_buckets.h"
#include "worker_sdk/torch/step_times.h"
#include "worker_sdk/torch/tensor_exchange.h"
#include "worker_sdk/torch/wrapped_model.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

template <typename Send>
void send_before_forward(const char* what, const Send& send) {
  say_what_for(concat("DistributedDataParallel sent ", what,
                      " before a forward: all ranks go forward through it equally often; one that "
                      "evaluates alone calls module()"),
               send);
}

// Agrees on what all ranks do next. Throws if a rank has run out of inputs and JoinOptions makes
// that an error.
JoinRound meet(JoinCall call, const JoinOptions& options, const WrappedModel& model) {
  const JoinRound round =
      judge(gather_bytes(static_cast<std::uint8_t>(call), model.communicator(), model.device()));
  if (options.throw_on_early_termination && round.num_active > 0 && round.first_out >= 0) {
    throw_invalid("rank ", round.first_out,
                  " has no more inputs, other ranks have: all end "
                  "here (JoinOptions::throw_on_early_termination)");
  }
  return round;
}

// Returns rank 0's order of arrival. Collective.
std::vector<std::size_t> rank_zeros_arrival(const std::vector<std::size_t>& mine,
                                            const WrappedModel& model) {
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]);
  send_before_forward("the order of the buckets",
                      [&] { broadcast_bytes(bytes, 0, model.communicator(), model.device()); });
  std::vector<std::size_t> arrival(mine.size());
  std::memcpy(arrival.data(), bytes.data(), bytes.size());
  return arrival;
}

}  // namespace

DdpBase::DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options)
    : model_(std::make_unique<WrappedModel>(module, communicator, options)) {
  DdpBackward::check_nobody_averages(*model_);
  model_->send_state(0, /*with_buffers=*/true);
  buckets_ = std::make_unique<GradientBuckets>(*model_);
  times_ = std::make_unique<StepTimes>(buckets_->reducer(), model_->device(), communicator);
  backward_ = std::make_unique<DdpBackward>(*model_, *buckets_, *times_);
}

DdpBase::~DdpBase() = default;

void DdpBase::check_still_as_wrapped() const {
  buckets_->check_ready();
  model_->check_frozen();
}

// Checks the use of DdpOptions::zero; the result is the same on all ranks.
void DdpBase::check_shards_are_used() const {
  if (zero() == ZeroStage::kOff) return;
  if (!has_optimizer_) {
    throw_invalid(
        "DdpOptions::zero needs a ShardedOptimizer, made before the first forward: no other "
        "one finds gradients");
  }
  if (buckets_->has_averages()) {
    throw_invalid(
        "DdpOptions::zero: the averages of the backward before are still there: call "
        "zero_grad() after each step; to add gradients up, all backwards but the last go in "
        "no_sync");
  }
}

void DdpBase::before_forward() {
  if (model_->communicator().captures_graph()) {
    throw_invalid(
        "DistributedDataParallel: a CUDA graph is captured, and neither forward nor backward "
        "can be part of one: run them outside of the capture");
  }
  const bool with_gradients = c10::GradMode::is_enabled();
  const bool averages = with_gradients && no_sync_depth_ == 0;
  if (with_gradients) {
    check_still_as_wrapped();
    model_->check_nothing_is_new();
    check_shards_are_used();
  }
  int buffers_from = 0;
  if (join_) {
    const JoinRound round =
        meet(averages ? JoinCall::kAveraged : JoinCall::kLocal, *join_, *model_);
    buffers_from = round.source_rank;
    backward_->scale_averages(join_->divide_by_initial_world_size
                                  ? 1
                                  : static_cast<double>(model_->communicator().size()) /
                                        round.num_active);
  }
  if (with_gradients) backward_->expect(averages);
  if (averages) times_->forward_begins();
  go_forward(averages, buffers_from);
}

void DdpBase::go_forward(bool averages, int buffers_from) {
  WorkerProgress* const progress = model_->communicator().progress();
  if (averages && progress != nullptr) progress->count_step();
  const Reducer& reducer = buckets_->reducer();
  if (averages && reducer.wants_rebuild()) {
    buckets_->rebuild(rank_zeros_arrival(reducer.first_arrival(), *model_));
  }
  if (model_->options().broadcast_buffers && sends_buffers_) {
    send_before_forward("rank 0's buffers", [&] { model_->send_buffers(buffers_from); });
  }
  // As in PyTorch, buffers may differ after a local step until the next averaged one has run.
  sends_buffers_ = averages;
}

void DdpBase::after_forward(const std::vector<at::Tensor>& outputs) {
  backward_->after_forward(outputs);
}

void DdpBase::zero_grad() {
  model_->forget_gradients();
  buckets_->forget_shards();
}

void DdpBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (join_) {
    throw_invalid(
        "DdpBase::register_comm_hook: not within a join, whose other ranks may have run out");
  }
  if (zero() != ZeroStage::kOff) {
    throw Error(ErrorCode::kUnsupported, "DdpBase::register_comm_hook: not with DdpOptions::zero");
  }
  buckets_->reducer().set_hook(std::move(hook));
}

const GradientTraffic& DdpBase::traffic() const { return buckets_->reducer().traffic(); }
const IterationTrace& DdpBase::trace() const { return buckets_->reducer().trace(); }
StepStatistics DdpBase::statistics() const { return times_->statistics(); }
void DdpBase::waited_for_data(Clock::duration time) { times_->waited_for_data(time); }
const BucketPlan& DdpBase::bucket_plan() const { return buckets_->reducer().plan(); }
const std::vector<at::Tensor>& DdpBase::parameters() const { return model_->parameters(); }
std::size_t DdpBase::gradient_bytes() const { return buckets_->reducer().size_bytes(); }
ZeroStage DdpBase::zero() const { return model_->options().zero; }

std::vector<std::string> DdpBase::gradient_order() const {
  std::vector<std::string> names;
  for (const std::size_t index : buckets_->reducer().order()) names.push_back(model_->name(index));
  return names;
}

void DdpBase::set_gradient_order(const std::vector<std::string>& names) {
  check_still_as_wrapped();
  if (join_) {
    throw_invalid(
        "DdpBase::set_gradient_order: not within a join, whose other ranks may have run "
        "out");
  }
  if (zero() != ZeroStage::kOff) {
    throw_invalid(
        "DdpBase::set_gradient_order: not with DdpOptions::zero, whose buckets are formed "
        "once");
  }
  std::string lines;
  for (const std::string& name : names) lines += name + '\n';
  broadcast_bytes(lines, 0, model_->communicator(), model_->device());
  std::vector<std::string> rank_0;
  std::istringstream stream(lines);
  for (std::string name; std::getline(stream, name);) rank_0.push_back(name);
  buckets_->rebuild(indices_of_order(model_->names(), rank_0));
}

std::vector<TensorView> DdpBase::gradient_buckets() const {
  const Reducer& reducer = buckets_->reducer();
  std::vector<TensorView> buckets;
  for (std::size_t b = 0; b < reducer.num_buckets(); ++b) buckets.push_back(reducer.bucket(b));
  return buckets;
}

DdpBase::NoSync::NoSync(DdpBase& ddp) : ddp_(ddp) { ++ddp_.no_sync_depth_; }
DdpBase::NoSync::~NoSync() { --ddp_.no_sync_depth_; }

DdpBase::Join::Join(DdpBase& ddp, const JoinOptions& options) : ddp_(ddp) {
  if (ddp_.join_) {
    throw_invalid("DdpBase::join: the one before has not ended: a scope can't be inside another");
  }
  if (ddp_.zero() != ZeroStage::kOff) {
    throw Error(ErrorCode::kUnsupported,
                "DdpBase::join: not with DdpOptions::zero, whose updates need every rank");
  }
  ddp_.join_ = options;
}

DdpBase::Join::~Join() {
  if (open_) leave();
}

void DdpBase::Join::leave() {
  ddp_.join_.reset();
  ddp_.backward_->scale_averages(1);
  open_ = false;
}

JoinResult DdpBase::Join::finish() {
  if (!open_) throw_invalid("DdpBase::Join: finish() was called twice");
  WrappedModel& model = *ddp_.model_;
  JoinResult result;
  JoinRound round = meet(JoinCall::kRanOut, *ddp_.join_, model);
  for (; round.num_active > 0; round = meet(JoinCall::kShadow, *ddp_.join_, model)) {
    ddp_.go_forward(round.averages, round.source_rank);
    if (!round.averages) continue;
    ddp_.zero_grad();
    ddp_.backward_->shadow();
    ++result.num_shadowed;
  }
  result.source_rank = round.source_rank;
  model.send_state(round.source_rank, model.options().broadcast_buffers);
  leave();
  return result;
}

}  // namespace ddprun
