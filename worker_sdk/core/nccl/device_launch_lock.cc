// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/device_launch_lock.h"

#include <cstdlib>
#include <map>

#include "common/env_names.h"

namespace ddprun::nccl {
namespace {

// Process-wide as NCCL's own check is: communicators of several sessions share a device.
std::mutex& mutex_of(int device) {
  static std::mutex table_mutex;
  static auto& table =
      *new std::map<int, std::mutex>;  // never destroyed: threads may go on at exit
  const std::lock_guard lock(table_mutex);
  return table[device];
}

}  // namespace

bool DeviceLaunchLock::is_needed() {
  const char* value = std::getenv(env::kNcclLaunchOrderImplicit);
  return value != nullptr && std::strtoll(value, nullptr, 0) != 0;
}

DeviceLaunchLock::DeviceLaunchLock(int device) : lock_(mutex_of(device)) {}

}  // namespace ddprun::nccl
