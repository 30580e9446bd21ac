// SPDX-License-Identifier: Apache-2.0
// NVML for tests. Each function reads its answers from a file at each call:
// - FAKE_NVML_LIST: "DEVICE PID BYTES" lines, the processes of two GPUs. FAKE_NVML_LIST.read tells
//   that one call has read it, for both GPUs. If the file says "hang", the call hangs. If it says
//   "hang at once", nvmlInit hangs; "broken": nvmlInit fails.
// - FAKE_NVML_USE: "DEVICE PID PERCENT" lines, how much of a GPU each process uses all the time.
// - FAKE_NVML_STATE: "DEVICE KEY VALUE" lines, as ddprun-gpus prints them. No GPU can tell a key
//   that is not in the file.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace {

struct ProcessInfo {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};

std::string list() {
  std::ifstream file(std::getenv("FAKE_NVML_LIST"));
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr int kNotSupported = 3;

int state(const char* key, long long* value, void* device = nullptr) {
  const char* path = std::getenv("FAKE_NVML_STATE");
  std::ifstream lines(path != nullptr ? path : "/dev/null");
  const auto wanted = static_cast<long long>(reinterpret_cast<std::size_t>(device)) - 1;
  long long index = 0, number = 0;
  std::string name;
  while (lines >> index >> name >> number) {
    if (index != wanted || name != key) continue;
    *value = number;
    return 0;
  }
  return kNotSupported;
}

template <typename Number>
int state_of(void* device, const char* key, Number* to) {
  long long value = 0;
  const int status = state(key, &value, device);
  if (status == 0) *to = static_cast<Number>(value);
  return status;
}

}  // namespace

extern "C" {

int nvmlSystemGetCudaDriverVersion_v2(int* version) { return state_of(nullptr, "cuda", version); }
int nvmlDeviceGetComputeMode(void* device, unsigned* mode) {
  return state_of(device, "compute_mode", mode);
}
int nvmlDeviceGetPersistenceMode(void* device, unsigned* mode) {
  return state_of(device, "persistence", mode);
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned type, unsigned, unsigned long long* count) {
  return state_of(device, type == 0 ? "ecc_corrected" : "ecc_uncorrected", count);
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
  *corrected = *uncorrected = 0;
  const int status = state_of(device, "remap_pending", pending);
  return status != 0 ? status : state_of(device, "remap_failed", failed);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return state_of(device, "slowdown", reasons);
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* is_active) {
  unsigned active = 0, inactive = 0;
  if (state_of(device, "nvlinks_active", &active) != 0) return kNotSupported;
  state_of(device, "nvlinks_inactive", &inactive);
  *is_active = link < active ? 1 : 0;
  return link < active + inactive ? 0 : 2;
}

struct Utilisation {
  unsigned gpu_percent, memory_percent;
};
struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetUtilizationRates(void* device, Utilisation* use) {
  use->memory_percent = 0;
  return state_of(device, "use_percent", &use->gpu_percent);
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->free = 0;
  const int status = state_of(device, "memory", &memory->total);
  return status != 0 ? status : state_of(device, "memory_used", &memory->used);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return state_of(device, "milliwatts", milliwatts);
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* celsius) {
  return state_of(device, "celsius", celsius);
}

int nvmlInit_v2() {
  while (list() == "hang at once") ::pause();
  return list() == "broken" ? 9 : 0;
}
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{index} + 1);
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  const std::string text = list();
  while (text == "hang") ::pause();
  std::istringstream lines(text);
  std::size_t index = 0;
  unsigned long long bytes = 0;
  unsigned pid = 0, found = 0;
  while (lines >> index >> pid >> bytes) {
    if (index + 1 != reinterpret_cast<std::size_t>(device)) continue;
    if (found < *count) infos[found] = {pid, bytes, 0, 0};
    ++found;
  }
  const bool is_last = reinterpret_cast<std::size_t>(device) == 2;
  if (is_last) std::ofstream(std::string(std::getenv("FAKE_NVML_LIST")) + ".read");
  const bool fits = found <= *count;
  *count = found;
  return fits ? 0 : 7;
}

struct UtilisationSample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
};

int nvmlDeviceGetProcessUtilization(void* device, UtilisationSample* samples, unsigned* count,
                                    unsigned long long since_us) {
  std::ifstream lines(std::getenv("FAKE_NVML_USE"));
  std::size_t index = 0;
  unsigned pid = 0, percent = 0, found = 0;
  while (lines >> index >> pid >> percent) {
    if (index + 1 != reinterpret_cast<std::size_t>(device) || found == *count) continue;
    samples[found++] = {pid, since_us + 1, percent, 0, 0, 0};
  }
  *count = found;
  return found == 0 ? 6 : 0;
}

}  // extern "C"
