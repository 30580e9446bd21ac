// SPDX-License-Identifier: Apache-2.0
// How busy, full and hot this node's GPUs are, as NVML says it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// nullopt: the GPU, or its driver, can't say.
struct GpuStatus {
  std::optional<double> use;  // share of the last moments in which a kernel ran, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;
};
using GpuStatuses = std::map<int, GpuStatus>;  // by NVML's index

// ddprun-gpus' lines (gpu_reading.h); what isn't of that form is left out.
GpuStatuses parse_gpu_statuses(std::string_view lines);

}  // namespace ddprun::agent
