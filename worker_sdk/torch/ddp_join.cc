// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

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

// What all ranks do next; throws where one has run out and that is to end it.
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

// What this rank does while others go forward and backward: the same operations in the same order.
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
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] == 0) reducer_->take_back(i);
  }
  if (communicator_.progress()) communicator_.progress()->end_counted_step();
}

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
