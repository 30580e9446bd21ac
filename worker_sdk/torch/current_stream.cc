// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/current_stream.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

// By LibTorch's device-independent interface: its CUDA part is not linked, it registers itself.
void* current_torch_stream(int device_index) {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return nullptr;
  try {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index));
    return cuda.getStreamNativeHandle(cuda.getStream(device));
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kSystem, concat("LibTorch's current stream on GPU ", device_index, ": ",
                                           error.what_without_backtrace()));
  }
}

}  // namespace ddprun
