// SPDX-License-Identifier: Apache-2.0
// A variable that was meant for ddprun and means nothing to it.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

// One line for each DDPRUN_ variable that is spelled almost as an option, or as one that only the
// command line can give. Pure.
std::vector<std::string> unknown_variables(const Environment& environment);

}  // namespace ddprun::launcher
