// SPDX-License-Identifier: Apache-2.0
// Device memory that NCCL moves without a copy.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/nccl/operation.h"

namespace ddprun::nccl {

// Waits until a communicator's streams have finished with memory that is about to be freed. Neither
// ncclMemFree nor the thread that sees an operation fail waits for that. One per communicator. Any
// thread.
class StreamDrain {
 public:
  enum class End {
    kDrained,
    kStillBusy,  // the limit has passed
    kUnknown,  // CUDA doesn't say: a graph is captured, its context is broken, or the process ends
    kHung,     // left_behind() was called: no more memory is given back
  };

  StreamDrain(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
              std::shared_ptr<Failure> failure, std::shared_ptr<CallerStream> caller,
              NcclOptions options)
      : cuda_(std::move(cuda)),
        events_(std::move(events)),
        failure_(std::move(failure)),
        caller_(std::move(caller)),
        options_(std::move(options)) {}

  // Sets the communicator's stream. Call it before the first wait().
  void open(Stream stream) {
    const std::lock_guard lock(mutex_);
    stream_ = stream;
  }

  // Called when the communicator is gone. `ended`: all that its stream had under way has ended.
  // Waits for calls that record on the stream, free_timeout at most; after that is_hung() is true.
  void close(bool ended);

  // Returns the calling thread's current stream, for wait(). Throws what the caller's function
  // throws.
  Stream callers_stream();

  // Blocks until all that the communicator's stream and `callers` hold now has ended, with or
  // without an abort. The limit is abort_timeout after the communicator failed, or after `timeout`.
  // The calling thread's device must be options.device. Never throws.
  End wait(Stream callers);

  // After a failure the device may hang. Returns the time at which to leave behind the thread that
  // frees memory, including the time of wait(). nullopt: nothing has failed.
  std::optional<Deadline> limit_of_freeing() const;
  // Called when that thread was left behind: the device hangs. Bounds the process' exit, too.
  void left_behind();

  bool is_hung() const {
    const std::lock_guard lock(mutex_);
    return is_hung_;
  }

 private:
  bool is_capturing(Stream stream) const;
  End wait_for(Event own, Event callers);

  // Constant after construction.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<EventPool> events_;     // shared with the communicator
  const std::shared_ptr<Failure> failure_;      // shared with the communicator
  const std::shared_ptr<CallerStream> caller_;  // shared with the communicator
  const NcclOptions options_;

  mutable std::mutex mutex_;
  Stream stream_ = nullptr;          // Guarded by mutex_; nullptr: the communicator is gone
  End after_close_ = End::kDrained;  // Guarded by mutex_
  bool is_hung_ = false;             // Guarded by mutex_
  int num_recording_ = 0;            // Guarded by mutex_: calls that use the stream
  std::condition_variable recorded_;
};

// The objects that make and free a buffer. The first four are shared with the communicator.
struct BufferMakers {
  std::shared_ptr<CudaApi> cuda;
  std::shared_ptr<NcclApi> nccl;
  std::shared_ptr<CommGate> gate;
  std::shared_ptr<StreamDrain> drain;
  int device = 0;
  int rank = 0;
};

// The calling thread's device must be `makers.device`. If NCCL refuses the registration, only speed
// is lost. Throws Error(kResourceExhausted) when the device is full. The buffer's destructor frees
// it when nothing uses it any more: see StreamDrain::wait. If that can't be reached, the buffer
// stays allocated, with a warning. After the communicator failed, the limit is
// StreamDrain::limit_of_freeing. The first buffer that the device doesn't take back in that time
// leaves the others allocated, too. Before a failure cudaFree has no limit.
std::unique_ptr<CommBuffer> make_nccl_buffer(const BufferMakers& makers, std::size_t size_bytes);

}  // namespace ddprun::nccl
