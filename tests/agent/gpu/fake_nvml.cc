// SPDX-License-Identifier: Apache-2.0
// NVML for tests: two GPUs, whose processes the file FAKE_NVML_LIST has ("DEVICE PID BYTES" lines),
// read at each call; FAKE_NVML_LIST.read tells that one was, for both. Where the file says "hang"
// it does; "broken": nvmlInit fails. FAKE_NVML_USE likewise has "DEVICE PID PERCENT" lines: what
// each process uses a GPU for, all the time.
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

}  // namespace

extern "C" {

int nvmlInit_v2() { return list() == "broken" ? 9 : 0; }
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
