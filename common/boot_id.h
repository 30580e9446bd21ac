// SPDX-License-Identifier: Apache-2.0
// Which run of this machine it is: its monotonic clock goes on for as long.
#pragma once

#include <string>

namespace ddprun {

// The kernel's random id; empty where it can't be read.
std::string boot_id();

}  // namespace ddprun
