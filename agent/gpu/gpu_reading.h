// SPDX-License-Identifier: Apache-2.0
// What NVML says of the state of this node's GPUs, as lines of ddprun-gpus: "DEVICE KEY VALUE".
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// Keys. What a GPU or its driver can't say is left out.
inline constexpr char kGpuCudaVersion[] = "cuda";            // of the driver: 12080 is 12.8
inline constexpr char kGpuComputeMode[] = "compute_mode";    // 0 default, 1 and 3 exclusive, 2 none
inline constexpr char kGpuPersistence[] = "persistence";     // 0 off, 1 on
inline constexpr char kGpuEccCorrected[] = "ecc_corrected";  // since the driver was loaded
inline constexpr char kGpuEccUncorrected[] = "ecc_uncorrected";  // likewise
inline constexpr char kGpuRemapPending[] = "remap_pending";      // 1: rows wait for a reset
inline constexpr char kGpuRemapFailed[] = "remap_failed";        // 1: no spare row was left
inline constexpr char kGpuSlowdown[] = "slowdown";               // bits of the reasons below
inline constexpr char kGpuLinksActive[] = "nvlinks_active";
inline constexpr char kGpuLinksInactive[] = "nvlinks_inactive";

// Of GpuRequest::kStatus.
inline constexpr char kGpuUsePercent[] = "use_percent";
inline constexpr char kGpuMemory[] = "memory";  // bytes
inline constexpr char kGpuMemoryUsed[] = "memory_used";
inline constexpr char kGpuMilliwatts[] = "milliwatts";
inline constexpr char kGpuCelsius[] = "celsius";

inline constexpr long long kSlowdownOfHardware = 0x8, kSlowdownBySoftwareHeat = 0x20,
                           kSlowdownByHeat = 0x40, kSlowdownByPowerBrake = 0x80;

struct GpuReading {
  int device = 0;  // NVML's index; −1: of all
  std::string key;
  long long value = 0;

  friend bool operator==(const GpuReading&, const GpuReading&) = default;
};

std::string to_line(const GpuReading& reading);
// nullopt: not of that form.
std::optional<GpuReading> parse_gpu_reading(std::string_view line);

}  // namespace ddprun::agent
