// SPDX-License-Identifier: Apache-2.0
// The lines with which ddprun-gpus answers: the state of this node's GPUs ("DEVICE KEY VALUE"), and
// the processes that use them. Pure.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// The keys. A key is left out if the GPU or its driver can't tell the value.
inline constexpr char kGpuCudaVersion[] = "cuda";            // of the driver: 12080 is 12.8
inline constexpr char kGpuComputeMode[] = "compute_mode";    // 0 default, 1 and 3 exclusive, 2 none
inline constexpr char kGpuPersistence[] = "persistence";     // 0 off, 1 on
inline constexpr char kGpuEccCorrected[] = "ecc_corrected";  // errors since the driver was loaded
inline constexpr char kGpuEccUncorrected[] = "ecc_uncorrected";  // the same
inline constexpr char kGpuRemapPending[] = "remap_pending";      // 1: rows wait for a reset
inline constexpr char kGpuRemapFailed[] = "remap_failed";        // 1: no spare row was left
inline constexpr char kGpuSlowdown[] = "slowdown";               // bits of the reasons below
inline constexpr char kGpuLinksActive[] = "nvlinks_active";
inline constexpr char kGpuLinksInactive[] = "nvlinks_inactive";

// Keys of GpuRequest::kStatus.
inline constexpr char kGpuUsePercent[] = "use_percent";
inline constexpr char kGpuMemory[] = "memory";  // bytes
inline constexpr char kGpuMemoryUsed[] = "memory_used";
inline constexpr char kGpuMilliwatts[] = "milliwatts";
inline constexpr char kGpuCelsius[] = "celsius";

inline constexpr long long kSlowdownOfHardware = 0x8, kSlowdownBySoftwareHeat = 0x20,
                           kSlowdownByHeat = 0x40, kSlowdownByPowerBrake = 0x80;

struct GpuReading {
  int device = 0;  // NVML's index; −1: the value is of all GPUs
  std::string key;
  long long value = 0;

  friend bool operator==(const GpuReading&, const GpuReading&) = default;
};

std::string to_line(const GpuReading& reading);
// nullopt: the line has another form.
std::optional<GpuReading> parse_gpu_reading(std::string_view line);

// A process that holds GPU memory.
struct GpuProcess {
  int device = 0;           // NVML's index
  std::int64_t pid = 0;     // as the driver knows it: the host's, also for a container
  std::uint64_t bytes = 0;  // 0: the driver doesn't say

  friend bool operator==(const GpuProcess&, const GpuProcess&) = default;
};

// One process of ddprun-gpus' answer has the line "DEVICE PID BYTES". nullopt: the line has another
// form.
std::string to_line(const GpuProcess& process);
std::optional<GpuProcess> parse_gpu_process(std::string_view line);

struct GpuHolders {
  // Processes of the round: they are dead and were not there before it, but the driver still holds
  // their memory.
  std::vector<GpuProcess> dying;
  // Processes of others: they are alive and were not there before the round.
  std::vector<GpuProcess> foreign;
};

// `before` and `now` are of all GPUs: before the round's processes were started, and after they
// ended.
GpuHolders gpu_holders(const std::vector<GpuProcess>& before, const std::vector<GpuProcess>& now,
                       const std::function<bool(std::int64_t pid)>& is_alive);

// Returns "GPU 0: 12.0 GiB by pid 71, GPU 1: …" with at most `limit` processes.
std::string describe(const std::vector<GpuProcess>& processes, std::size_t limit = 8);

// How busy, full and hot a GPU is. nullopt: the GPU, or its driver, can't say.
struct GpuStatus {
  std::optional<double> use;  // share of the last moments in which a kernel ran, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;
};
using GpuStatuses = std::map<int, GpuStatus>;  // by NVML's index

// Parses the answer to kStatus; skips lines of another form.
GpuStatuses parse_gpu_statuses(std::string_view lines);

// The share of the GPU that a process used most, in percent, by pid as the driver knows it.
using GpuShares = std::map<pid_t, int>;

// Parses "PID PERCENT" lines; skips others. A process on several GPUs gets its largest share.
GpuShares parse_gpu_shares(std::string_view lines);

}  // namespace ddprun::agent
