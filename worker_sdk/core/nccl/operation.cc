// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/operation.h"

#include <utility>

#include "common/text.h"

namespace ddprun::nccl {

void EventPool::clear() {
  std::vector<Event> events;
  {
    std::lock_guard lock(mutex_);
    events.swap(free_);
  }
  for (Event event : events) cuda_->event_destroy(event);
}

Event EventPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Event event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  check_cuda(*cuda_, cuda_->event_create(&event, is_timed_), rank_, "cudaEventCreate");
  return event;
}

Operation::Operation(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
                     std::shared_ptr<Failure> failure, const OperationFacts& facts,
                     std::chrono::milliseconds timeout, FlightRecorder::Ticket ticket)
    : cuda_(std::move(cuda)),
      events_(std::move(events)),
      failure_(std::move(failure)),
      facts_(facts),
      ticket_(ticket),
      timeout_(timeout),
      deadline_(Deadline::after(timeout)),
      event_(events_->take()),
      begin_(events_->is_timed() ? events_->take() : nullptr) {}

std::string Operation::name() const {
  std::string text = concat("operation ", facts_.sequence, ", ");
  if (facts_.kind == CollectiveKind::kAllocate) return text + "zeroing a buffer";
  text += kind_name(facts_.kind);
  if (facts_.kind == CollectiveKind::kBarrier) return text;
  text += concat(" of ", facts_.count, " ", dtype_name(facts_.dtype));
  if (has_op(facts_.kind)) text += concat(" ", op_name(facts_.op));
  if (facts_.root < 0) return text;
  const bool sends = facts_.kind == CollectiveKind::kSend || facts_.kind == CollectiveKind::kReduce;
  return concat(text, sends ? " to rank " : " from rank ", facts_.root);
}

void Operation::mark_captured() {
  std::lock_guard lock(mutex_);
  captured_.store(true, std::memory_order_release);
  if (state_ == State::kPending) state_ = State::kDone;
}

std::chrono::nanoseconds Operation::device_time() const {
  float milliseconds = 0;
  if (begin_ == nullptr || is_captured()) return {};
  if (cuda_->event_elapsed(&milliseconds, begin_, event_) != kCudaSuccess) return {};
  return std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6));
}

Operation::State Operation::poll() {
  std::lock_guard lock(mutex_);
  if (state_ != State::kPending) return state_;
  if (failure_->is_set()) return state_ = State::kFailed;
  if (!launched_.load(std::memory_order_acquire)) return state_;
  const CudaResult result = cuda_->event_query(event_);
  if (result == kCudaNotReady) return state_;
  if (result != kCudaSuccess) {
    failure_->set(Error(ErrorCode::kSystem, name() + ": " + cuda_->error_text(result)));
    return state_ = State::kFailed;
  }
  // The failure is set before the abort begins. If it is unset now, the event passed because the
  // work was done.
  return state_ = failure_->is_set() ? State::kFailed : State::kDone;
}

void wait_on_host(Operation& operation, const Failure& failure) {
  using std::chrono::microseconds;
  constexpr int kNumYields = 64;  // a short operation ends within this many
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

}  // namespace ddprun::nccl
