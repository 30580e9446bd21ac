// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/device_identity.h"

#include "common/error.h"

namespace ddprun::nccl {

std::string device_identity(CudaApi& cuda, int local_rank) {
  int num_devices = 0;
  if (const auto result = cuda.device_count(&num_devices); result != kCudaSuccess) {
    throw Error(ErrorCode::kUnsupported, "CUDA: " + cuda.error_text(result));
  }
  if (num_devices == 0) throw Error(ErrorCode::kUnsupported, "CUDA sees no GPU");
  if (local_rank >= num_devices) {
    throw Error(ErrorCode::kUnsupported, "LOCAL_RANK is " + std::to_string(local_rank) +
                                             ", but CUDA sees " + std::to_string(num_devices) +
                                             (num_devices == 1 ? " GPU" : " GPUs"));
  }
  std::string uuid;
  if (const auto result = cuda.device_uuid(local_rank, &uuid); result != kCudaSuccess) {
    throw Error(ErrorCode::kUnsupported,
                "the UUID of GPU " + std::to_string(local_rank) + ": " + cuda.error_text(result));
  }
  return uuid;
}

}  // namespace ddprun::nccl
