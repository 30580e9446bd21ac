// SPDX-License-Identifier: Apache-2.0
// Whether compiled CUDA code runs on a GPU: looked at before its first kernel fails with "no kernel
// image is available for execution on the device", which names neither.
#pragma once

#include <string>
#include <string_view>

#include "worker_sdk/core/nccl/cuda_api.h"

namespace ddprun::nccl {

// Of code that nvcc made with `flags` ("… -gencode arch=compute_90,code=sm_90 …"), on a GPU of
// compute capability major.minor: "" where it runs there, or the flags don't tell; else what it was
// made for, "7.5, 8.0, 9.0". Pure.
std::string made_for_others(std::string_view flags, int major, int minor);

// Throws Error(kUnsupported), which names both, where `whose` ("this LibTorch") code does not run
// on the device. Creates no CUDA context.
void check_code(CudaApi& cuda, int device, const std::string& whose, std::string_view flags);

}  // namespace ddprun::nccl
