// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_buffer.h"

#include <algorithm>
#include <exception>

#include "common/bounded_call.h"
#include "common/log.h"

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
      // Events of a capture can't be queried, and a query breaks the capture.
      if (is_capturing(stream) || is_capturing(callers_stream)) return End::kUnknown;
      ++num_recording_;  // keeps the stream; the lock isn't held, for recording may hang
    }
    const bool is_recorded = cuda_->event_record(own.get(), stream) == kCudaSuccess &&
                             cuda_->event_record(callers.get(), callers_stream) == kCudaSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (--num_recording_ == 0) recorded_.notify_all();
    }
    return is_recorded ? wait_for(own.get(), callers.get()) : End::kUnknown;
  } catch (const std::exception&) {
    return End::kUnknown;  // no event could be made
  }
}

bool StreamDrain::is_capturing(Stream stream) const {
  bool captures = false;
  const CudaResult result = cuda_->stream_is_capturing(stream, &captures);
  return captures || result == kCudaCaptureImplicit;
}

StreamDrain::End StreamDrain::wait_for(Event own, Event callers) {
  const auto longest = Deadline::after(options_.timeout);
  std::optional<Deadline> last;  // set after a failure or `timeout`: the limit of the abort
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

namespace {

class NcclBuffer : public CommBuffer {
 public:
  NcclBuffer(const BufferMakers& makers, std::size_t size_bytes) : memory_{makers, size_bytes} {
    const std::size_t allocated_bytes = std::max<std::size_t>(size_bytes, 64);
    if (memory_.nccl->has_mem_alloc()) {
      memory_.from_nccl =
          memory_.nccl->mem_alloc(&memory_.data, allocated_bytes) == Result::kSuccess;
    }
    if (!memory_.from_nccl) {
      check_cuda(*memory_.cuda, memory_.cuda->memory_allocate(&memory_.data, allocated_bytes),
                 memory_.rank,
                 concat("allocating ", allocated_bytes, " bytes on device ", memory_.device));
      return;
    }
    register_with_comm();
  }

  ~NcclBuffer() override {
    StreamDrain::End end = StreamDrain::End::kUnknown;
    try {
      const Stream callers = memory_.drain->callers_stream();
      const auto limit = memory_.drain->limit_of_freeing();
      end = limit ? free_within(*limit, callers) : free_here(callers);
    } catch (const std::exception&) {
      // The caller's stream is unknown.
    }
    const char* why = nullptr;
    switch (end) {
      case StreamDrain::End::kDrained:
        return;
      case StreamDrain::End::kStillBusy:
        why = " is still used by operations that do not end";
        break;
      case StreamDrain::End::kUnknown:
        why = " may still be in use: CUDA does not say";
        break;
      case StreamDrain::End::kHung:
        why = " is not taken back by the device, which hangs";
        break;
    }
    log_warning("rank ", memory_.rank, ": a buffer of ", memory_.size_bytes, " bytes on device ",
                memory_.device, why, "; it stays allocated until this process ends");
  }

  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;

  void* data() override { return memory_.data; }
  std::size_t size_bytes() const override { return memory_.size_bytes; }

 private:
  // All that freeing needs. A thread that is left behind owns a copy.
  struct Memory : BufferMakers {
    std::size_t size_bytes = 0;
    void* data = nullptr;
    void* registration = nullptr;  // nullptr: not registered
    bool from_nccl = false;        // else from cudaMalloc
  };

  void register_with_comm() {
    NcclApi& nccl = *memory_.nccl;
    void* handle = nullptr;
    const CommGate::Pass pass(*memory_.gate);
    if (pass.comm() == nullptr) return;
    const Result result =
        nccl.comm_register(pass.comm(), memory_.data, memory_.size_bytes, &handle);
    if (result == Result::kSuccess) {
      memory_.registration = handle;
    } else {
      log_debug("rank ", memory_.rank,
                ": NCCL did not register a buffer: ", nccl.error_text(result));
    }
  }

  // The calling thread's device must be the memory's.
  static void give_back(const Memory& memory) {
    if (memory.registration != nullptr) {
      const CommGate::Pass pass(*memory.gate);
      if (pass.comm() != nullptr) memory.nccl->comm_deregister(pass.comm(), memory.registration);
    }
    if (memory.from_nccl) {
      memory.nccl->mem_free(memory.data);
    } else {
      memory.cuda->memory_free(memory.data);
    }
  }

  StreamDrain::End free_here(Stream callers) {
    int before = memory_.device;
    memory_.cuda->get_device(&before);
    memory_.cuda->set_device(memory_.device);
    StreamDrain::End end = memory_.drain->wait(callers);
    const auto failed_now = memory_.drain->limit_of_freeing();
    if (end == StreamDrain::End::kDrained) {
      if (failed_now) {
        end = free_within(*failed_now, callers);
      } else {
        give_back(memory_);
      }
    }
    memory_.cuda->set_device(before);
    return end;
  }

  StreamDrain::End free_within(Deadline deadline, Stream callers) {
    // Shared with the call, which may outlive this function.
    const auto end = std::make_shared<StreamDrain::End>(StreamDrain::End::kUnknown);
    const auto free = [memory = memory_, callers, end] {
      memory.cuda->set_device(memory.device);
      *end = memory.drain->wait(callers);
      if (*end == StreamDrain::End::kDrained) give_back(memory);
    };
    if (returns_before(deadline, free)) return *end;
    memory_.drain->left_behind();
    return StreamDrain::End::kHung;
  }

  Memory memory_;  // constant after construction
};

}  // namespace

std::unique_ptr<CommBuffer> make_nccl_buffer(const BufferMakers& makers, std::size_t size_bytes) {
  return std::make_unique<NcclBuffer>(makers, size_bytes);
}

}  // namespace ddprun::nccl
