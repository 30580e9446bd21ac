// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank would use.
#pragma once

#include <string>

#include "worker_sdk/core/nccl/cuda_api.h"

namespace ddprun::nccl {

// The id of device `local_rank`, equal for all processes that use this GPU (or MIG slice) and only
// for them. Throws Error(kUnsupported) that says why this rank has none. Creates no CUDA context.
std::string device_identity(CudaApi& cuda, int local_rank);

// The GPU that device `local_rank` is a slice of, or all of: equal where NCCL before 2.30.7 says
// "Duplicate GPU". Made of the bus id and what NCCL knows a host by ($NCCL_HOSTID, else host name
// and boot id). Throws Error(kUnsupported). Creates no CUDA context.
std::string gpu_identity(CudaApi& cuda, int local_rank);

}  // namespace ddprun::nccl
