// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/load_cuda.h"

#include <dlfcn.h>
#include <torch/cuda.h>

#include <filesystem>

namespace ddprun {

std::string load_cuda() {
  if (!std::filesystem::exists("/dev/nvidiactl")) return "no NVIDIA driver on this machine";
  // Its constructors register CUDA with the LibTorch that is loaded.
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return ::dlerror();
  return torch::cuda::is_available() ? "" : "LibTorch finds no usable GPU";
}

}  // namespace ddprun
