// SPDX-License-Identifier: Apache-2.0
// The real CUDA runtime and NCCL, found at run time. Nothing is linked: a program built with these
// files starts on a machine with no NVIDIA software at all.
#pragma once

#include <memory>

#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// Search order, each: $DDPRUN_CUDART_LIBRARY / $DDPRUN_NCCL_LIBRARY, the copy that is loaded
// already (LibTorch's), the dynamic linker's path, the library folder beside the headers of the
// build. Throws Error(kUnsupported): built without the CUDA headers, a library that can't be loaded
// (with the linker's own words for each try), a function that is missing, a version before
// kMinVersion, $DDPRUN_NCCL_LIBRARY beside another NCCL that is loaded.
std::shared_ptr<CudaApi> load_cuda();
std::shared_ptr<NcclApi> load_nccl();

}  // namespace ddprun::nccl
