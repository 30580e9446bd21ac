// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/gpu_lines.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

// Takes the number at the beginning of `rest` off it; false: there is none.
template <typename Number>
bool take_field(std::string_view& rest, Number& number) {
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const auto taken = take_number<Number>(rest);
  number = taken.value_or(0);
  return taken.has_value();
}

std::string gibibytes(std::uint64_t bytes) {
  if (bytes == 0) return "memory";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

constexpr int kMostDevices = 1024;

}  // namespace

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

std::string to_line(const GpuProcess& process) {
  return concat(process.device, " ", process.pid, " ", process.bytes);
}

std::optional<GpuProcess> parse_gpu_process(std::string_view line) {
  GpuProcess process;
  const bool whole = take_field(line, process.device) && take_field(line, process.pid) &&
                     take_field(line, process.bytes) && line.empty();
  if (!whole || process.device < 0 || process.pid <= 0) return std::nullopt;
  return process;
}

GpuHolders gpu_holders(const std::vector<GpuProcess>& before, const std::vector<GpuProcess>& now,
                       const std::function<bool(std::int64_t pid)>& is_alive) {
  GpuHolders holders;
  for (const GpuProcess& process : now) {
    const bool was_there =
        std::any_of(before.begin(), before.end(), [&](const GpuProcess& earlier) {
          return earlier.pid == process.pid && earlier.device == process.device;
        });
    if (was_there) continue;
    (is_alive(process.pid) ? holders.foreign : holders.dying).push_back(process);
  }
  return holders;
}

std::string describe(const std::vector<GpuProcess>& processes, std::size_t limit) {
  return first_listed(processes, limit, [](const GpuProcess& process) {
    return concat("GPU ", process.device, ": ", gibibytes(process.bytes), " by pid ", process.pid);
  });
}

GpuStatuses parse_gpu_statuses(std::string_view lines) {
  GpuStatuses all;
  while (!lines.empty()) {
    const auto reading = parse_gpu_reading(take_until(lines, "\n"));
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

GpuShares parse_gpu_shares(std::string_view lines) {
  GpuShares shares;
  while (!lines.empty()) {
    std::string_view line = take_until(lines, "\n");
    pid_t pid = 0;
    int percent = -1;
    if (line.starts_with(' ') || !take_field(line, pid) || !line.starts_with(' ')) continue;
    if (!take_field(line, percent) || !line.empty()) continue;
    if (pid > 0 && percent >= 0 && percent <= 100) shares[pid] = std::max(shares[pid], percent);
  }
  return shares;
}

}  // namespace ddprun::agent
