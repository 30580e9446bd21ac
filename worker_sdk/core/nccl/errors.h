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
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

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
  bool is_set() const;
  std::optional<Error> get() const;                // without the prefix: for the other ranks
  std::optional<Clock::time_point> since() const;  // nullopt: it has not failed
  void throw_if_set() const;

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
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  CudaApi& cuda_;
  int previous_ = -1;  // −1: nothing to restore
};

}  // namespace ddprun::nccl
