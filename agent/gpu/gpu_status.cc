// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_status.h"

#include <algorithm>

#include "agent/gpu/gpu_reading.h"

namespace ddprun::agent {
namespace {

constexpr int kMostDevices = 1024;

}  // namespace

GpuStatuses parse_gpu_statuses(std::string_view lines) {
  GpuStatuses all;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const auto reading = parse_gpu_reading(line);
    if (!reading || reading->device < 0 || reading->device >= kMostDevices) continue;
    if (reading->value < 0 && reading->key != kGpuCelsius) continue;
    const auto value = static_cast<double>(reading->value);
    GpuStatus& gpu = all[reading->device];
    if (reading->key == kGpuUsePercent) gpu.use = std::min(value / 100, 1.0);
    if (reading->key == kGpuMemory) gpu.memory_bytes = reading->value;
    if (reading->key == kGpuMemoryUsed) gpu.memory_used_bytes = reading->value;
    if (reading->key == kGpuMilliwatts) gpu.watts = value / 1000;
    if (reading->key == kGpuCelsius) gpu.celsius = value;
  }
  return all;
}

}  // namespace ddprun::agent
