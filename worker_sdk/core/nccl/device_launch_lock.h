// SPDX-License-Identifier: Apache-2.0
// With NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL fails the call where two host threads launch on one device
// at once (NCCL_LAUNCH_RACE_FATAL), be it on different communicators.
#pragma once

#include <mutex>

namespace ddprun::nccl {

// While it lives no other thread of this process has one of the same device. For the launch alone:
// a launch that waits for other ranks delays every communicator of the device.
class DeviceLaunchLock {
 public:
  // NCCL was told to keep the order of launches, in the environment, as NCCL itself reads it.
  static bool is_needed();

  explicit DeviceLaunchLock(int device);  // blocks

 private:
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace ddprun::nccl
