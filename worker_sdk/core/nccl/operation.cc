// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/operation.h"

#include <utility>

namespace ddprun::nccl {

EventPool::EventPool(std::shared_ptr<CudaApi> cuda, int rank)
    : cuda_(std::move(cuda)), rank_(rank) {}

EventPool::~EventPool() {
  if (!is_left_) clear();
}

void EventPool::clear() {
  std::vector<Event> events;
  {
    std::lock_guard lock(mutex_);
    events.swap(free_);
  }
  for (Event event : events) cuda_->event_destroy(event);
}

void EventPool::leave() {
  std::lock_guard lock(mutex_);
  is_left_ = true;
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
  check_cuda(*cuda_, cuda_->event_create(&event), rank_, "cudaEventCreate");
  return event;
}

void EventPool::give_back(Event event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Operation::Operation(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
                     std::shared_ptr<Failure> failure, const OperationFacts& facts,
                     std::string name, std::chrono::milliseconds timeout,
                     FlightRecorder::Ticket ticket)
    : cuda_(std::move(cuda)),
      events_(std::move(events)),
      failure_(std::move(failure)),
      facts_(facts),
      ticket_(ticket),
      name_(std::move(name)),
      timeout_(timeout),
      deadline_(Deadline::after(timeout)),
      event_(events_->take()) {}

Operation::~Operation() { events_->give_back(event_); }

void Operation::mark_captured() {
  std::lock_guard lock(mutex_);
  captured_.store(true, std::memory_order_release);
  if (state_ == State::kPending) state_ = State::kDone;
}

Operation::State Operation::poll() {
  std::lock_guard lock(mutex_);
  if (state_ != State::kPending) return state_;
  if (failure_->is_set()) return state_ = State::kFailed;
  if (!launched_.load(std::memory_order_acquire)) return state_;
  const CudaResult result = cuda_->event_query(event_);
  if (result == kCudaNotReady) return state_;
  if (result != kCudaSuccess) {
    failure_->set(Error(ErrorCode::kSystem, name_ + ": " + cuda_->error_text(result)));
    return state_ = State::kFailed;
  }
  // Set before the abort begins: unset now means that the event passed because the work was done.
  return state_ = failure_->is_set() ? State::kFailed : State::kDone;
}

}  // namespace ddprun::nccl
