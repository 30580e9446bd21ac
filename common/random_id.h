// SPDX-License-Identifier: Apache-2.0
// A name that nobody else draws.
#pragma once

#include <string>

namespace ddprun {

// 32 hexadecimal digits from the kernel's random numbers. Throws Error(kSystem).
std::string random_id();

}  // namespace ddprun
