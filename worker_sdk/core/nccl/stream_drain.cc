// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/stream_drain.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "common/exit_bound.h"
#include "worker_sdk/core/nccl/pause.h"

namespace ddprun::nccl {
namespace {

class PooledEvent {
 public:
  explicit PooledEvent(EventPool& pool) : pool_(pool), event_(pool.take()) {}
  ~PooledEvent() { pool_.give_back(event_); }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  Event get() const { return event_; }

 private:
  EventPool& pool_;
  const Event event_;
};

}  // namespace

StreamDrain::StreamDrain(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
                         std::shared_ptr<Failure> failure, std::shared_ptr<CallerStream> caller,
                         NcclOptions options)
    : cuda_(std::move(cuda)),
      events_(std::move(events)),
      failure_(std::move(failure)),
      caller_(std::move(caller)),
      options_(std::move(options)) {}

void StreamDrain::open(Stream stream) {
  const std::lock_guard lock(mutex_);
  stream_ = stream;
}

void StreamDrain::close(bool ended) {
  std::unique_lock lock(mutex_);
  stream_ = nullptr;
  after_close_ = ended ? End::kDrained : End::kStillBusy;
  const auto limit = Deadline::after(options_.free_timeout);
  is_hung_ |= !recorded_.wait_until(lock, limit.at(), [this] { return num_recording_ == 0; });
}

Stream StreamDrain::callers_stream() {
  {
    const std::lock_guard lock(mutex_);
    if (stream_ == nullptr) return nullptr;
  }
  return caller_->on(options_.device);
}

std::optional<Deadline> StreamDrain::limit_of_freeing() const {
  const auto failed = failure_->since();
  if (!failed) return std::nullopt;
  return Deadline(std::max(*failed + options_.abort_timeout, Clock::now()) + options_.free_timeout);
}

void StreamDrain::left_behind() {
  {
    const std::lock_guard lock(mutex_);
    is_hung_ = true;
  }
  bound_exit(options_.exit_timeout);
}

bool StreamDrain::is_hung() const {
  const std::lock_guard lock(mutex_);
  return is_hung_;
}

StreamDrain::End StreamDrain::wait(Stream callers_stream) {
  {
    const std::lock_guard lock(mutex_);
    if (is_hung_) return End::kHung;
    if (stream_ == nullptr) return after_close_;
  }
  try {
    const PooledEvent own(*events_);
    const PooledEvent callers(*events_);
    Stream stream = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stream_ == nullptr) return after_close_;
      stream = stream_;
      // Events of a capture can't be asked for, and asking breaks it.
      if (is_capturing(stream) || is_capturing(callers_stream)) return End::kUnknown;
      ++num_recording_;  // it stays there, and the lock isn't held: recording may hang
    }
    const bool is_recorded = cuda_->event_record(own.get(), stream) == kCudaSuccess &&
                             cuda_->event_record(callers.get(), callers_stream) == kCudaSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (--num_recording_ == 0) recorded_.notify_all();
    }
    return is_recorded ? wait_for(own.get(), callers.get()) : End::kUnknown;
  } catch (const std::exception&) {
    return End::kUnknown;  // no event
  }
}

bool StreamDrain::is_capturing(Stream stream) const {
  bool captures = false;
  const CudaResult result = cuda_->stream_is_capturing(stream, &captures);
  return captures || result == kCudaCaptureImplicit;
}

StreamDrain::End StreamDrain::wait_for(Event own, Event callers) {
  const auto longest = Deadline::after(options_.timeout);
  std::optional<Deadline> last;  // set once nothing can keep the operations but the abort
  Pause pause;
  for (const Event event : {own, callers}) {
    for (;;) {
      const CudaResult result = cuda_->event_query(event);
      if (result == kCudaSuccess) break;
      if (result != kCudaNotReady) return End::kUnknown;
      if (!last) {
        const auto failed = failure_->since();
        if (failed || longest.expired()) {
          last = Deadline(failed.value_or(longest.at()) + options_.abort_timeout);
        }
      }
      if (last && last->expired()) return End::kStillBusy;
      pause.take(last.value_or(longest));
    }
  }
  return End::kDrained;
}

}  // namespace ddprun::nccl
