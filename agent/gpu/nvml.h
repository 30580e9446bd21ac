// SPDX-License-Identifier: Apache-2.0
// The little of NVML that is needed here, opened at run time.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "agent/gpu/gpu_process.h"
#include "agent/gpu/gpu_reading.h"

namespace ddprun::agent {

class Nvml {
 public:
  // Loads the file that DDPRUN_NVML_LIBRARY names, else libnvidia-ml.so.1, and initialises it.
  // Throws Error(kUnsupported) with NVML's own reason.
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // GPUs that answer.
  std::size_t num_devices() const { return devices().size(); }

  // Compute processes of all GPUs. A GPU that doesn't answer is left out.
  std::vector<GpuProcess> processes() const;

  // Processes and the percentage of a GPU's time that each has used since the call before (the last
  // second, at first), on each GPU that it uses. A GPU that can't say (MIG, a driver that is too
  // old) is left out.
  std::vector<std::pair<unsigned, unsigned>> shares();

  // The state of all GPUs. What a GPU, or this driver, can't say is left out.
  std::vector<GpuReading> readings() const;

  // Likewise how busy, full and hot they are: asked again and again.
  std::vector<GpuReading> status() const;

 private:
  using Device = void*;
  // Each with NVML's index. A GPU that doesn't answer is left out.
  std::vector<std::pair<unsigned, Device>> devices() const;

  // nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3 (and _v2).
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id;
    unsigned compute_instance_id;
  };

  // nvmlProcessUtilizationSample_t.
  struct UtilisationSample {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
  };

  void* library_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*running_)(Device, unsigned*, ProcessInfo*) = nullptr;
  int (*utilisation_)(Device, UtilisationSample*, unsigned*, unsigned long long) = nullptr;
  std::map<unsigned, unsigned long long> seen_until_us_;  // by GPU: the last sample's time
};

}  // namespace ddprun::agent
