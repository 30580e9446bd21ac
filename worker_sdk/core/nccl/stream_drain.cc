// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/stream_drain.h"

#include <exception>
#include <optional>
#include <utility>

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
  const std::lock_guard lock(mutex_);
  stream_ = nullptr;
  after_close_ = ended ? End::kDrained : End::kStillBusy;
}

StreamDrain::End StreamDrain::wait() {
  try {
    const PooledEvent own(*events_);
    const PooledEvent callers(*events_);
    {
      const std::lock_guard lock(mutex_);
      if (stream_ == nullptr) return after_close_;
      const Stream current = caller_->on(options_.device);
      if (cuda_->event_record(own.get(), stream_) != kCudaSuccess ||
          cuda_->event_record(callers.get(), current) != kCudaSuccess) {
        return End::kUnknown;
      }
    }
    return wait_for(own.get(), callers.get());
  } catch (const std::exception&) {
    return End::kUnknown;  // no event, or the caller's stream can't be told
  }
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
