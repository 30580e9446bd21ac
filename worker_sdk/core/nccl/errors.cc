// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/errors.h"

namespace ddprun::nccl {
namespace {

constexpr CudaResult kCudaOutOfMemory = 2;

ErrorCode code_of(Result result) {
  switch (result) {
    case Result::kRemoteError:
      return ErrorCode::kPeerLost;
    case Result::kInvalidArgument:
    case Result::kInvalidUsage:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kSystem;
  }
}

}  // namespace

Error nccl_error(NcclApi& nccl, Comm comm, Result result, int rank, std::string_view what) {
  std::string message =
      "rank " + std::to_string(rank) + ": " + std::string(what) + ": " + nccl.error_text(result);
  const std::string details = nccl.last_error(comm);
  if (!details.empty()) message += " (NCCL: " + details + ")";
  if (result == Result::kRemoteError) message += "; another rank is gone: meet in the next round";
  return {code_of(result), message};
}

Error cuda_error(CudaApi& cuda, CudaResult result, int rank, std::string_view what) {
  return {
      result == kCudaOutOfMemory ? ErrorCode::kResourceExhausted : ErrorCode::kSystem,
      "rank " + std::to_string(rank) + ": " + std::string(what) + ": " + cuda.error_text(result)};
}

Error agent_says_peer_lost(int rank, std::string_view what) {
  return {ErrorCode::kPeerLost, "rank " + std::to_string(rank) + ": " + std::string(what) +
                                    ": a worker of this round has died, says the agent"};
}

void check_cuda(CudaApi& cuda, CudaResult result, int rank, std::string_view what) {
  if (result != kCudaSuccess) throw cuda_error(cuda, result, rank, what);
}

bool Failure::set(const Error& error, Clock::time_point since) {
  std::lock_guard lock(mutex_);
  if (error_) return false;
  error_.emplace(error);
  since_ = since;
  return true;
}

std::optional<Clock::time_point> Failure::since() const {
  std::lock_guard lock(mutex_);
  return error_ ? std::optional(since_) : std::nullopt;
}

bool Failure::is_set() const {
  std::lock_guard lock(mutex_);
  return error_.has_value();
}

std::optional<Error> Failure::get() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void Failure::throw_if_set() const {
  if (const auto error = get()) throw Error(error->code(), prefix_ + error->what());
}

DeviceGuard::DeviceGuard(CudaApi& cuda, int device, int rank) : cuda_(cuda) {
  int current = -1;
  check_cuda(cuda_, cuda_.get_device(&current), rank, "cudaGetDevice");
  if (current == device) return;
  check_cuda(cuda_, cuda_.set_device(device), rank,
             "cudaSetDevice(" + std::to_string(device) + ")");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cuda_.set_device(previous_);
}

}  // namespace ddprun::nccl
