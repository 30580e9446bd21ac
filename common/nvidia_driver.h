// SPDX-License-Identifier: Apache-2.0
// Finds out cheaply whether NVIDIA's driver is there: asking a missing driver costs a search.
#pragma once

#include <unistd.h>

namespace ddprun {

// True also in WSL, whose driver is Windows' own.
inline bool has_nvidia_driver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

}  // namespace ddprun
