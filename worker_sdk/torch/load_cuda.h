// SPDX-License-Identifier: Apache-2.0
// CUDA for a program that was linked against LibTorch's CPU part, as this SDK is. The same binary
// starts on machines without a GPU.
#pragma once

#include <string>

namespace ddprun {

struct NcclLibraries;

// Registers CUDA with the LibTorch of this process, for good. Call it before anything else of
// LibTorch, which looks for CUDA once. Returns "" if LibTorch can compute on a GPU here; else the
// reason why not, and nothing has changed. Quick on a machine without NVIDIA's driver; once is
// enough. libtorch_cuda's symbols don't become global (RTLD_LOCAL). A plugin that uses them names
// the library as its own dependency (DT_NEEDED).
std::string load_cuda();

// Calls load_cuda(), then loads CUDA and NCCL for the communicators. It is the
// SessionOptions::nccl_loader of programs that train with LibTorch. They can use a GPU only if
// LibTorch can compute on it, and has code for it. Throws Error(kUnsupported) with the reason.
NcclLibraries load_cuda_and_nccl();

}  // namespace ddprun
