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
  std::string details = nccl.last_error(comm);
  if (!details.empty()) details = " (NCCL: " + details + ")";
  if (result == Result::kRemoteError) details += "; another rank is gone: meet in the next round";
  return rank_error(code_of(result), rank, what, ": ", nccl.error_text(result), details);
}

Error cuda_error(CudaApi& cuda, CudaResult result, int rank, std::string_view what) {
  return rank_error(result == kCudaOutOfMemory ? ErrorCode::kResourceExhausted : ErrorCode::kSystem,
                    rank, what, ": ", cuda.error_text(result));
}

Error agent_says_peer_lost(int rank, std::string_view what) {
  return rank_error(ErrorCode::kPeerLost, rank, what,
                    ": a worker of this round has died, says the agent");
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

DeviceGuard::DeviceGuard(CudaApi& cuda, int device, int rank) : cuda_(cuda) {
  int current = -1;
  check_cuda(cuda_, cuda_.get_device(&current), rank, "cudaGetDevice");
  if (current == device) return;
  check_cuda(cuda_, cuda_.set_device(device), rank,
             "cudaSetDevice(" + std::to_string(device) + ")");
  previous_ = current;
}

}  // namespace ddprun::nccl
