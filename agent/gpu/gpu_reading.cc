// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_reading.h"

#include <sstream>

#include "common/log.h"

namespace ddprun::agent {

std::string to_line(const GpuReading& reading) {
  return concat(reading.device, " ", reading.key, " ", reading.value);
}

std::optional<GpuReading> parse_gpu_reading(std::string_view line) {
  std::istringstream words{std::string(line)};
  GpuReading reading;
  std::string more;
  if (!(words >> reading.device >> reading.key >> reading.value) || words >> more) {
    return std::nullopt;
  }
  return reading;
}

}  // namespace ddprun::agent
