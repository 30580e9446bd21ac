// SPDX-License-Identifier: Apache-2.0
// The SDK's access to LibTorch's own state: autocast, streams, CUDA, random generators.
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include <mutex>

#include "common/process_facts.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/nccl/device_identity.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/torch/autocast.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/load_cuda.h"
#include "worker_sdk/torch/rng_state.h"

namespace ddprun {

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      former_dtype_(at::autocast::get_autocast_dtype(device)) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw_invalid("autocast to ", c10::toString(dtype), ": it is for float16 and bfloat16");
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, former_dtype_);
}

// Uses LibTorch's device-independent interface: its CUDA part is not linked, but registers itself.
void* current_torch_stream(int device_index) {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return nullptr;
  try {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index));
    return cuda.getStreamNativeHandle(cuda.getStream(device));
  } catch (const c10::Error& error) {
    throw_error(ErrorCode::kSystem, "LibTorch's current stream on GPU ", device_index, ": ",
                error.what_without_backtrace());
  }
}

std::string load_cuda() {
  if (!has_nvidia_driver()) return "no NVIDIA driver on this machine";
  // The library's constructors register CUDA with the LibTorch that is loaded. RTLD_LOCAL: the NCCL
  // that comes with it must not replace the functions of another one.
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL)) return ::dlerror();
  if (torch::cuda::is_available()) return "";
  std::string why = "LibTorch finds no usable GPU";
  try {
    nccl::device_identity(*nccl::load_cuda(), 0);  // throws CUDA's reason: old driver, hidden GPUs
  } catch (const Error& error) {
    const std::string reason = error.what();
    why += ": " + reason.substr(0, reason.find('\n'));
  }
  return why;
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

at::Tensor rng_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace ddprun
