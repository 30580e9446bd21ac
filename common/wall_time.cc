// SPDX-License-Identifier: Apache-2.0
#include "common/wall_time.h"

#include <ctime>

namespace ddprun {

std::string utc_text(WallTime at) {
  const std::time_t time = WallTime::clock::to_time_t(at);
  std::tm parts{};
  char text[64];
  if (::gmtime_r(&time, &parts) == nullptr) return {};
  return {text, std::strftime(text, sizeof text, "%FT%TZ", &parts)};
}

}  // namespace ddprun
