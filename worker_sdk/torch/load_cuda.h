// SPDX-License-Identifier: Apache-2.0
// CUDA for a program that was linked against LibTorch's CPU part, as this SDK is: the same binary
// starts on machines without a GPU.
#pragma once

#include <string>

namespace ddprun {

// Registers CUDA with the LibTorch of this process, for good; call it before the first tensor on
// torch::kCUDA, and once is enough. Empty: LibTorch can compute on a GPU here; else why it can't,
// and nothing has changed. Quick on a machine without NVIDIA's driver.
std::string load_cuda();

}  // namespace ddprun
