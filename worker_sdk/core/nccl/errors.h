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

// Makes an error that begins with "rank 3: …", as each error of this backend does.
template <typename... Parts>
Error rank_error(ErrorCode code, int rank, const Parts&... parts) {
  return {code, concat("rank ", rank, ": ", parts...)};
}

// Returns "rank 3: all_reduce #12: remote process exited or there was a network error (NCCL:
// <details>)". kRemoteError → kPeerLost; kInvalidArgument, kInvalidUsage → kInvalidArgument; others
// → kSystem. `comm` gives the details and may be nullptr.
Error nccl_error(NcclApi& nccl, Comm comm, Result result, int rank, std::string_view what);

// Returns Error(kSystem), or kResourceExhausted if CUDA is out of memory.
Error cuda_error(CudaApi& cuda, CudaResult result, int rank, std::string_view what);

// Returns the Error(kPeerLost) of a rank that knows it from its agent
// (WorkerProgress::peer_lost()).
Error agent_says_peer_lost(int rank, std::string_view what);

// Throws cuda_error unless `result` is kCudaSuccess.
void check_cuda(CudaApi& cuda, CudaResult result, int rank, std::string_view what);

// Why a communicator ended: set once, read by every thread that uses it.
class Failure {
 public:
  // `prefix` is put before the reason by throw_if_set() (RankGroup::prefix()).
  explicit Failure(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // Returns false if it had failed before; the first reason stays. `since`: when it happened.
  bool set(const Error& error, Clock::time_point since = Clock::now());

  bool is_set() const {
    std::lock_guard lock(mutex_);
    return error_.has_value();
  }

  // Returns the error without the prefix, for the other ranks.
  std::optional<Error> get() const {
    std::lock_guard lock(mutex_);
    return error_;
  }

  // Returns when it failed; nullopt: it has not failed.
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
  Clock::time_point since_{};   // guarded by mutex_
};

// Selects `device` for this thread; the destructor selects the previous one again.
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
