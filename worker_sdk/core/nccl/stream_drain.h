// SPDX-License-Identifier: Apache-2.0
// Waits until a communicator's streams have let go of memory that is about to be freed: neither
// ncclMemFree nor the thread that sees an operation fail does.
#pragma once

#include <memory>
#include <mutex>

#include "worker_sdk/core/nccl/caller_stream.h"
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_options.h"
#include "worker_sdk/core/nccl/operation.h"

namespace ddprun::nccl {

// One per communicator. Any thread.
class StreamDrain {
 public:
  enum class End {
    kDrained,
    kStillBusy,  // the limit has passed
    kUnknown,    // CUDA doesn't say: its context is broken, or the process is ending
  };

  StreamDrain(std::shared_ptr<CudaApi> cuda, std::shared_ptr<EventPool> events,
              std::shared_ptr<Failure> failure, std::shared_ptr<CallerStream> caller,
              NcclOptions options);

  // The communicator's stream is there. Before the first wait().
  void open(Stream stream);
  // The communicator is gone; `ended`: so is all that its stream had under way.
  void close(bool ended);

  // Blocks until all that the communicator's stream and the caller's current one hold now has
  // ended, well or by an abort. Limit: abort_timeout after the communicator failed, or after
  // `timeout`. The calling thread's device must be options.device. Never throws.
  End wait();

 private:
  End wait_for(Event own, Event callers);

  // Constant after construction.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<EventPool> events_;     // second owner: the communicator
  const std::shared_ptr<Failure> failure_;      // likewise
  const std::shared_ptr<CallerStream> caller_;  // likewise
  const NcclOptions options_;

  std::mutex mutex_;
  Stream stream_ = nullptr;          // Guarded by mutex_; nullptr: the communicator is gone
  End after_close_ = End::kDrained;  // Guarded by mutex_
};

}  // namespace ddprun::nccl
