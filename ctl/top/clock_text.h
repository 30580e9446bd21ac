// SPDX-License-Identifier: Apache-2.0
// A moment as this machine's clock on the wall has it.
#pragma once

#include <array>
#include <chrono>
#include <ctime>
#include <string>

#include "common/wall_time.h"

namespace ddprun::top {

// "03:11:40", local time.
inline std::string clock_text(WallTime at) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(at);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  return text.data();
}

}  // namespace ddprun::top
