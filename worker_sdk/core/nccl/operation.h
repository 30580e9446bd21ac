// SPDX-License-Identifier: Apache-2.0
// One NCCL operation under way, shared by the launching thread, the watchdog and its Work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/operation_facts.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// Pauses of growing length between polls: NCCL and CUDA offer no wait with a deadline.
class Pause {
 public:
  // Sleeps 20 µs the first time, later at most 5 ms, and never beyond the deadline.
  void take(Deadline deadline) {
    std::this_thread::sleep_for(std::min<Clock::duration>(next_, deadline.remaining()));
    next_ = std::min<Clock::duration>(next_ * 2, std::chrono::milliseconds(5));
  }

 private:
  Clock::duration next_ = std::chrono::microseconds(20);
};

// The caller's CUDA stream: operations run after its work, and results are handed to it. One per
// communicator. Any thread.
class CallerStream {
 public:
  // Empty: none is known yet.
  explicit CallerStream(CurrentStream current) : current_(std::move(current)) {}

  // Sets the caller's stream; no effect if one is known.
  void follow(const CurrentStream& current) {
    const std::lock_guard lock(mutex_);
    if (!current_) current_ = current;
  }

  // Returns an empty function if none is known.
  CurrentStream current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }

  // Returns the calling thread's stream on `device`; nullptr, the legacy default stream, if none is
  // known. Throws what the function throws.
  Stream on(int device) const {
    const CurrentStream stream = current();
    return stream ? static_cast<Stream>(stream(device)) : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  CurrentStream current_;  // Guarded by mutex_
};

// Events of one device, reused. Must be used with that device selected. Any thread.
class EventPool {
 public:
  // `is_timed`: operations are measured on the device.
  EventPool(std::shared_ptr<CudaApi> cuda, int rank, bool is_timed = false)
      : cuda_(std::move(cuda)), rank_(rank), is_timed_(is_timed) {}

  ~EventPool() {
    if (!is_left_) clear();
  }

  Event take();  // throws cuda_error
  bool is_timed() const { return is_timed_; }

  void give_back(Event event) {
    std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

  // Destroys the free events. The destructor does the same, unless leave() was called because the
  // device may hang.
  void clear();

  void leave() {
    std::lock_guard lock(mutex_);
    is_left_ = true;
  }

 private:
  const std::shared_ptr<CudaApi> cuda_;
  const int rank_;
  const bool is_timed_;
  std::mutex mutex_;
  std::vector<Event> free_;  // Guarded by mutex_
  bool is_left_ = false;     // guarded by mutex_
};

// An operation is done only when its event has passed while the communicator was still healthy. An
// abort also lets the event pass, with garbage in the buffer.
class Operation {
 public:
  enum class State { kPending, kDone, kFailed };

  // Pool and failure are shared with the communicator; operations may outlive it.
  Operation(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
            std::shared_ptr<Failure> failure, const OperationFacts& facts,
            std::chrono::milliseconds timeout, FlightRecorder::Ticket ticket = 0);
  ~Operation() {
    events_->give_back(event_);
    if (begin_ != nullptr) events_->give_back(begin_);
  }

  std::uint64_t seq() const { return facts_.sequence; }
  const OperationFacts& facts() const { return facts_; }
  FlightRecorder::Ticket ticket() const { return ticket_; }
  // Returns "operation 12, all_reduce of 256 float32 sum". Building it takes as long as a launch,
  // so call it only when needed.
  std::string name() const;
  Event event() const { return event_; }
  // Returns the event to be recorded before the operation. Null: the operation isn't measured.
  Event begin() const { return begin_; }
  Clock::time_point started() const { return started_; }
  Deadline deadline() const { return deadline_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Says that the event has been recorded after the operation; before this the event means nothing.
  void mark_launched() { launched_.store(true, std::memory_order_release); }

  // Says that it is part of a CUDA graph. It then counts as done for those that wait for it.
  void mark_captured();
  bool is_captured() const { return captured_.load(std::memory_order_acquire); }

  // Returns its time on the device once it is done, its wait for other ranks included. 0: not
  // measured.
  std::chrono::nanoseconds device_time() const;

  // Checks the event. A CUDA error sets the communicator's failure. Any thread.
  State poll();

 private:
  // Constant after construction.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<Failure> failure_;
  const OperationFacts facts_;
  const FlightRecorder::Ticket ticket_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point started_ = Clock::now();
  const Deadline deadline_;
  const Event event_;
  const Event begin_;

  std::atomic<bool> launched_{false};
  std::atomic<bool> captured_{false};
  std::mutex mutex_;
  State state_ = State::kPending;  // Guarded by mutex_
};

// Blocks until the operation is done; throws the communicator's failure. The watchdog ends the wait
// at the operation's deadline.
void wait_on_host(Operation& operation, const Failure& failure);

}  // namespace ddprun::nccl
