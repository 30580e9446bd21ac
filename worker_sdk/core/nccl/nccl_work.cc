// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_work.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace ddprun::nccl {

void wait_on_host(Operation& operation, const Failure& failure) {
  using std::chrono::microseconds;
  constexpr int kNumYields = 64;  // a short operation ends within these
  constexpr microseconds kLongestPause{1'000};
  microseconds pause{20};
  for (int round = 0;; ++round) {
    switch (operation.poll()) {
      case Operation::State::kDone:
        return;
      case Operation::State::kFailed:
        failure.throw_if_set();
        return;
      case Operation::State::kPending:
        break;
    }
    if (round < kNumYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }
}

NcclWork::NcclWork(Context context, std::shared_ptr<Operation> operation)
    : context_(std::move(context)), operation_(std::move(operation)) {}

bool NcclWork::is_completed() { return operation_->poll() != Operation::State::kPending; }

void NcclWork::wait() {
  if (operation_->poll() == Operation::State::kFailed) context_.failure->throw_if_set();
  bool captures = false;
  context_.cuda->stream_is_capturing(context_.caller->on(context_.device), &captures);
  if (operation_->is_captured() && !captures) return;  // replays are ordered by where they run
  if (captures && !operation_->is_captured()) {
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(context_.rank) + ": " + operation_->name() +
                    " began before the CUDA graph that is captured now: wait for it before that");
  }
  try {
    order_caller_behind();
  } catch (const Error& error) {
    context_.failure->set(error);  // the watchdog ends the communicator and tells the others
    context_.failure->throw_if_set();
  }
  if (context_.blocking_wait) wait_on_host(*operation_, *context_.failure);
}

void NcclWork::order_caller_behind() {
  CudaApi& cuda = *context_.cuda;
  DeviceGuard guard(cuda, context_.device, context_.rank);
  const Stream caller = context_.caller->on(context_.device);
  check_cuda(cuda, cuda.stream_wait_event(caller, operation_->event()), context_.rank,
             "cudaStreamWaitEvent");
}

}  // namespace ddprun::nccl
