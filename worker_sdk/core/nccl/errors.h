// SPDX-License-Identifier: Apache-2.0
// NCCL's and CUDA's failures as the one ddprun::Error, and the failure that ends a communicator.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// "rank 3: …", what each error of this backend begins with.
template <typename... Parts>
Error rank_error(ErrorCode code, int rank, const Parts&... parts) {
  return {code, concat("rank ", rank, ": ", parts...)};
}

// "rank 3: all_reduce #12: remote process exited or there was a network error (NCCL: <details>)".
// kRemoteError → kPeerLost; kInvalidArgument, kInvalidUsage → kInvalidArgument; others → kSystem.
// `comm` gives the details and may be nullptr.
Error nccl_error(NcclApi& nccl, Comm comm, Result result, int rank, std::string_view what);

// Error(kSystem), or kResourceExhausted where CUDA is out of memory.
Error cuda_error(CudaApi& cuda, CudaResult result, int rank, std::string_view what);

// Error(kPeerLost) of a rank that has it from its agent (WorkerProgress::peer_lost()).
Error agent_says_peer_lost(int rank, std::string_view what);

// Throws cuda_error unless `result` is kCudaSuccess.
void check_cuda(CudaApi& cuda, CudaResult result, int rank, std::string_view what);

// Why a communicator ended: set once, read by every thread that uses it.
class Failure {
 public:
  // `prefix`: what throw_if_set() says before the reason (RankGroup::prefix()).
  explicit Failure(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // False: it had failed before; the first reason stays. `since`: when it happened.
  bool set(const Error& error, Clock::time_point since = Clock::now());

  bool is_set() const {
    std::lock_guard lock(mutex_);
    return error_.has_value();
  }

  // Without the prefix: for the other ranks.
  std::optional<Error> get() const {
    std::lock_guard lock(mutex_);
    return error_;
  }

  // nullopt: it has not failed.
  std::optional<Clock::time_point> since() const {
    std::lock_guard lock(mutex_);
    return error_ ? std::optional(since_) : std::nullopt;
  }

  void throw_if_set() const {
    if (const auto error = get()) throw Error(error->code(), prefix_ + error->what());
  }

 private:
  const std::string prefix_;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // Guarded by mutex_
  Clock::time_point since_{};   // likewise
};

// Selects `device` for this thread, and the one before when it goes.
class DeviceGuard {
 public:
  DeviceGuard(CudaApi& cuda, int device, int rank);

  ~DeviceGuard() {
    if (previous_ >= 0) cuda_.set_device(previous_);
  }

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  CudaApi& cuda_;
  int previous_ = -1;  // −1: nothing to restore
};

}  // namespace ddprun::nccl
