// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/load_cuda.h"

#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include "common/error.h"
#include "common/nvidia_driver.h"
#include "worker_sdk/core/nccl/device_code.h"
#include "worker_sdk/core/session.h"

namespace ddprun {

std::string load_cuda() {
  if (!has_nvidia_driver()) return "no NVIDIA driver on this machine";
  // Its constructors register CUDA with the LibTorch that is loaded. Local: the NCCL that comes
  // with it must not take the place of another one's own functions.
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL)) return ::dlerror();
  return torch::cuda::is_available() ? "" : "LibTorch finds no usable GPU";
}

NcclLibraries load_cuda_and_nccl() {
  const std::string why_not = load_cuda();
  if (!why_not.empty()) throw Error(ErrorCode::kUnsupported, why_not);
  NcclLibraries libraries = load_nccl_libraries();
  libraries.check_device = [cuda = libraries.cuda](int device) {
    nccl::check_code(*cuda, device, "this LibTorch", at::show_config());
  };
  return libraries;
}

}  // namespace ddprun
