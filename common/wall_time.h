// SPDX-License-Identifier: Apache-2.0
// Points in time as people and JSON have them. Pure.
#pragma once

#include <chrono>
#include <string>

namespace ddprun {

using WallTime = std::chrono::system_clock::time_point;

// "2026-11-22T03:15:07Z".
std::string utc_text(WallTime at);

}  // namespace ddprun
