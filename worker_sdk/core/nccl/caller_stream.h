// SPDX-License-Identifier: Apache-2.0
// Which CUDA stream is the caller's: operations run behind it, results are handed to it.
#pragma once

#include <mutex>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/cuda_api.h"

namespace ddprun::nccl {

// One per communicator. Any thread.
class CallerStream {
 public:
  // Empty: none is known yet.
  explicit CallerStream(CurrentStream current);

  // No effect where one is known.
  void follow(const CurrentStream& current);

  // Empty where none is known.
  CurrentStream current() const;

  // The calling thread's on `device`; nullptr, the legacy default stream, where none is known.
  // Throws what the function throws.
  Stream on(int device) const;

 private:
  mutable std::mutex mutex_;
  CurrentStream current_;  // Guarded by mutex_
};

}  // namespace ddprun::nccl
