// SPDX-License-Identifier: Apache-2.0
// ddprun-gpus: answers each request on standard input, a letter of gpu_helper.h, with lines that
// end in ".". It ends with its input. Without NVML it prints one line that says why, and exits with
// 1.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "agent/gpu/gpu_helper.h"
#include "agent/gpu/gpu_lines.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

// Values of nvmlReturn_t.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr std::size_t kMaxSamples = 4096;  // more than the driver keeps
constexpr unsigned long long kFirstWindowUs = 1'000'000;
constexpr unsigned long long kNotAvailable = ~0ULL;  // used_gpu_memory if the driver hides it

constexpr unsigned kMostLinks = 18;
constexpr unsigned kCorrected = 0, kUncorrected = 1, kSinceLoaded = 0;

// Finds a function of the library. nullptr: this driver doesn't have it.
template <typename Function>
Function* find_call(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

template <typename Function>
void find(void* library, const char* name, Function** function) {
  *function = find_call<Function>(library, name);
}

// The few functions of NVML that are needed here, loaded at run time.
class Nvml {
 public:
  // Loads the file that DDPRUN_NVML_LIBRARY names, else libnvidia-ml.so.1, and initialises it.
  // Throws Error(kUnsupported) with NVML's own reason.
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Returns how many GPUs answer.
  std::size_t num_devices() const { return devices().size(); }

  // Returns the compute processes of all GPUs. A GPU that doesn't answer is left out.
  std::vector<GpuProcess> processes() const;

  // Returns the processes on each GPU, with the percentage of its time that each has used since the
  // last call. The first call reports the last second. A GPU that can't say (MIG, a driver that is
  // too old) is left out.
  std::vector<std::pair<unsigned, unsigned>> shares();

  // Returns the state of all GPUs. A value is left out if the GPU or this driver can't tell it.
  std::vector<GpuReading> readings() const;

  // Returns how busy, full and hot they are, for frequent calls. Unknown values are left out.
  std::vector<GpuReading> status() const;

 private:
  using Device = void*;
  // Returns each GPU with NVML's index. A GPU that doesn't answer is left out.
  std::vector<std::pair<unsigned, Device>> devices() const;

  // The nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3 (and _v2).
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id;
    unsigned compute_instance_id;
  };

  // NVML's nvmlProcessUtilizationSample_t.
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
  std::map<unsigned, unsigned long long> seen_until_us_;  // by GPU: the time of the last sample
};

Nvml::Nvml() {
  const char* chosen = std::getenv(env::kNvmlLibrary);
  const std::string file = chosen != nullptr && *chosen != '\0' ? chosen : "libnvidia-ml.so.1";
  library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) throw Error(ErrorCode::kUnsupported, concat("no NVML: ", ::dlerror()));
  int (*init)() = nullptr;
  find(library_, "nvmlInit_v2", &init);
  find(library_, "nvmlShutdown", &shutdown_);
  find(library_, "nvmlDeviceGetCount_v2", &count_);
  find(library_, "nvmlDeviceGetHandleByIndex_v2", &handle_);
  find(library_, "nvmlDeviceGetComputeRunningProcesses_v3", &running_);
  if (!running_) find(library_, "nvmlDeviceGetComputeRunningProcesses_v2", &running_);
  find(library_, "nvmlDeviceGetProcessUtilization", &utilisation_);  // may be missing
  if (!init || !shutdown_ || !count_ || !handle_ || !running_) {
    throw Error(ErrorCode::kUnsupported, file + " is too old to list processes (driver 510 can)");
  }
  if (const int status = init(); status != kSuccess) {
    throw Error(ErrorCode::kUnsupported, concat("nvmlInit: NVML error ", status));
  }
}

Nvml::~Nvml() { shutdown_(); }

std::vector<std::pair<unsigned, Nvml::Device>> Nvml::devices() const {
  std::vector<std::pair<unsigned, Device>> found;
  unsigned num_devices = 0;
  if (count_(&num_devices) != kSuccess) return found;
  for (unsigned index = 0; index < num_devices; ++index) {
    Device device = nullptr;
    if (handle_(index, &device) == kSuccess) found.emplace_back(index, device);
  }
  return found;
}

std::vector<GpuProcess> Nvml::processes() const {
  std::vector<GpuProcess> found;
  for (const auto& [index, device] : devices()) {
    std::vector<ProcessInfo> infos(32);
    unsigned count = 0;
    int status = kInsufficientSize;
    while (status == kInsufficientSize && infos.size() <= 65'536) {
      count = static_cast<unsigned>(infos.size());
      status = running_(device, &count, infos.data());
      if (status == kInsufficientSize) infos.resize(infos.size() * 4);
    }
    if (status != kSuccess) continue;
    for (unsigned i = 0; i < count && i < infos.size(); ++i) {
      const auto bytes = infos[i].used_gpu_memory;
      found.push_back({static_cast<int>(index), infos[i].pid, bytes == kNotAvailable ? 0 : bytes});
    }
  }
  return found;
}

std::vector<std::pair<unsigned, unsigned>> Nvml::shares() {
  std::vector<std::pair<unsigned, unsigned>> found;
  if (!utilisation_) return found;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  for (const auto& [index, device] : devices()) {
    unsigned long long& seen = seen_until_us_[index];
    if (seen == 0) seen = static_cast<unsigned long long>(now_us) - kFirstWindowUs;
    std::vector<UtilisationSample> samples(kMaxSamples);
    auto count = static_cast<unsigned>(samples.size());
    if (utilisation_(device, samples.data(), &count, seen) != kSuccess) continue;
    samples.resize(std::min<std::size_t>(count, samples.size()));
    // By pid: the sum of percents, and their number.
    std::map<unsigned, std::pair<unsigned, unsigned>> sums;
    for (const UtilisationSample& sample : samples) {
      if (sample.time_us <= seen) continue;
      sums[sample.pid].first += sample.sm_percent;
      ++sums[sample.pid].second;
    }
    for (const UtilisationSample& sample : samples) seen = std::max(seen, sample.time_us);
    for (const auto& [pid, sum] : sums) found.emplace_back(pid, sum.first / sum.second);
  }
  return found;
}

std::vector<GpuReading> Nvml::readings() const {
  std::vector<GpuReading> found;
  int index = -1;
  const auto add = [&](const char* key, auto value) {
    found.push_back({index, key, static_cast<long long>(value)});
  };
  if (auto* ask = find_call<int(int*)>(library_, "nvmlSystemGetCudaDriverVersion_v2")) {
    if (int version = 0; ask(&version) == kSuccess) add(kGpuCudaVersion, version);
  }
  for (const auto& each : devices()) {
    Device const device = each.second;
    index = static_cast<int>(each.first);
    const auto ask_number = [&](const char* name, const char* key) {
      auto* ask = find_call<int(Device, unsigned*)>(library_, name);
      if (unsigned value = 0; ask != nullptr && ask(device, &value) == kSuccess) add(key, value);
    };
    ask_number("nvmlDeviceGetComputeMode", kGpuComputeMode);
    ask_number("nvmlDeviceGetPersistenceMode", kGpuPersistence);
    if (auto* ask = find_call<int(Device, unsigned, unsigned, unsigned long long*)>(
            library_, "nvmlDeviceGetTotalEccErrors")) {
      unsigned long long count = 0;
      if (ask(device, kCorrected, kSinceLoaded, &count) == kSuccess) add(kGpuEccCorrected, count);
      if (ask(device, kUncorrected, kSinceLoaded, &count) == kSuccess) {
        add(kGpuEccUncorrected, count);
      }
    }
    if (auto* ask = find_call<int(Device, unsigned*, unsigned*, unsigned*, unsigned*)>(
            library_, "nvmlDeviceGetRemappedRows")) {
      unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
      if (ask(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
        add(kGpuRemapPending, pending);
        add(kGpuRemapFailed, failed);
      }
    }
    for (const char* name :
         {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}) {
      auto* ask = find_call<int(Device, unsigned long long*)>(library_, name);
      unsigned long long reasons = 0;
      if (ask == nullptr || ask(device, &reasons) != kSuccess) continue;
      add(kGpuSlowdown, reasons);
      break;
    }
    if (auto* ask =
            find_call<int(Device, unsigned, unsigned*)>(library_, "nvmlDeviceGetNvLinkState")) {
      unsigned num_active = 0, num_inactive = 0;
      for (unsigned link = 0; link < kMostLinks; ++link) {
        unsigned is_active = 0;
        if (ask(device, link, &is_active) != kSuccess) continue;  // there is no such link
        ++(is_active != 0 ? num_active : num_inactive);
      }
      add(kGpuLinksActive, num_active);
      add(kGpuLinksInactive, num_inactive);
    }
  }
  return found;
}

std::vector<GpuReading> Nvml::status() const {
  struct Utilisation {  // nvmlUtilization_t
    unsigned gpu_percent, memory_percent;
  };
  struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
  };
  constexpr unsigned kGpuSensor = 0;
  const auto ask_use =
      find_call<int(Device, Utilisation*)>(library_, "nvmlDeviceGetUtilizationRates");
  const auto ask_memory = find_call<int(Device, Memory*)>(library_, "nvmlDeviceGetMemoryInfo");
  const auto ask_power = find_call<int(Device, unsigned*)>(library_, "nvmlDeviceGetPowerUsage");
  const auto ask_heat =
      find_call<int(Device, unsigned, unsigned*)>(library_, "nvmlDeviceGetTemperature");
  std::vector<GpuReading> found;
  for (const auto& each : devices()) {
    Device const device = each.second;
    const auto add = [&](const char* key, auto value) {
      found.push_back({static_cast<int>(each.first), key, static_cast<long long>(value)});
    };
    Utilisation use{};
    if (ask_use != nullptr && ask_use(device, &use) == kSuccess) {
      add(kGpuUsePercent, use.gpu_percent);
    }
    Memory memory{};
    if (ask_memory != nullptr && ask_memory(device, &memory) == kSuccess) {
      add(kGpuMemory, memory.total);
      add(kGpuMemoryUsed, memory.used);
    }
    unsigned milliwatts = 0, celsius = 0;
    if (ask_power != nullptr && ask_power(device, &milliwatts) == kSuccess) {
      add(kGpuMilliwatts, milliwatts);
    }
    if (ask_heat != nullptr && ask_heat(device, kGpuSensor, &celsius) == kSuccess) {
      add(kGpuCelsius, celsius);
    }
  }
  return found;
}

}  // namespace
}  // namespace ddprun::agent

int main() {
  using namespace ddprun;
  try {
    agent::Nvml nvml;
    for (char request; ::read(STDIN_FILENO, &request, 1) == 1;) {
      if (request == static_cast<char>(agent::GpuRequest::kUtilisation)) {
        for (const auto& [pid, percent] : nvml.shares()) std::printf("%u %u\n", pid, percent);
      } else if (request == static_cast<char>(agent::GpuRequest::kStatus)) {
        for (const auto& reading : nvml.status()) std::puts(agent::to_line(reading).c_str());
      } else if (request == static_cast<char>(agent::GpuRequest::kReadings)) {
        for (const auto& reading : nvml.readings()) std::puts(agent::to_line(reading).c_str());
      } else if (request == static_cast<char>(agent::GpuRequest::kCount)) {
        std::printf("%zu\n", nvml.num_devices());
      } else {
        for (const auto& process : nvml.processes()) std::puts(agent::to_line(process).c_str());
      }
      std::puts(".");
      if (std::fflush(stdout) != 0) return 0;  // there is no reader any more
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "ddprun-gpus: %s\n", error.what());
    return 1;
  }
}
