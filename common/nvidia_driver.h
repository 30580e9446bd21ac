// SPDX-License-Identifier: Apache-2.0
// Whether NVIDIA's driver is there to be asked, at no cost: who asks it without one pays for a
// search.
#pragma once

#include <unistd.h>

namespace ddprun {

// Also in WSL, whose driver is Windows' own.
inline bool has_nvidia_driver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

}  // namespace ddprun
