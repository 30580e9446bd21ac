// SPDX-License-Identifier: Apache-2.0
// The part of Nvml about the state of the GPUs: asked once by who checks a node, and again and
// again by who watches it.
#include <dlfcn.h>

#include "agent/gpu/nvml.h"

namespace ddprun::agent {
namespace {

constexpr int kAnswered = 0;  // nvmlReturn_t
constexpr unsigned kMostLinks = 18;
constexpr unsigned kCorrected = 0, kUncorrected = 1, kSinceLoaded = 0;

// nullptr: this driver doesn't have it.
template <typename Function>
Function* find_call(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

std::vector<GpuReading> Nvml::readings() const {
  std::vector<GpuReading> found;
  int index = -1;
  const auto add = [&](const char* key, auto value) {
    found.push_back({index, key, static_cast<long long>(value)});
  };
  if (auto* ask = find_call<int(int*)>(library_, "nvmlSystemGetCudaDriverVersion_v2")) {
    if (int version = 0; ask(&version) == kAnswered) add(kGpuCudaVersion, version);
  }
  for (const auto& each : devices()) {
    Device const device = each.second;
    index = static_cast<int>(each.first);
    const auto ask_number = [&](const char* name, const char* key) {
      auto* ask = find_call<int(Device, unsigned*)>(library_, name);
      if (unsigned value = 0; ask != nullptr && ask(device, &value) == kAnswered) add(key, value);
    };
    ask_number("nvmlDeviceGetComputeMode", kGpuComputeMode);
    ask_number("nvmlDeviceGetPersistenceMode", kGpuPersistence);
    if (auto* ask = find_call<int(Device, unsigned, unsigned, unsigned long long*)>(
            library_, "nvmlDeviceGetTotalEccErrors")) {
      unsigned long long count = 0;
      if (ask(device, kCorrected, kSinceLoaded, &count) == kAnswered) add(kGpuEccCorrected, count);
      if (ask(device, kUncorrected, kSinceLoaded, &count) == kAnswered) {
        add(kGpuEccUncorrected, count);
      }
    }
    if (auto* ask = find_call<int(Device, unsigned*, unsigned*, unsigned*, unsigned*)>(
            library_, "nvmlDeviceGetRemappedRows")) {
      unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
      if (ask(device, &corrected, &uncorrected, &pending, &failed) == kAnswered) {
        add(kGpuRemapPending, pending);
        add(kGpuRemapFailed, failed);
      }
    }
    for (const char* name :
         {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}) {
      auto* ask = find_call<int(Device, unsigned long long*)>(library_, name);
      unsigned long long reasons = 0;
      if (ask == nullptr || ask(device, &reasons) != kAnswered) continue;
      add(kGpuSlowdown, reasons);
      break;
    }
    if (auto* ask =
            find_call<int(Device, unsigned, unsigned*)>(library_, "nvmlDeviceGetNvLinkState")) {
      unsigned num_active = 0, num_inactive = 0;
      for (unsigned link = 0; link < kMostLinks; ++link) {
        unsigned is_active = 0;
        if (ask(device, link, &is_active) != kAnswered) continue;  // there is no such link
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
    if (ask_use != nullptr && ask_use(device, &use) == kAnswered) {
      add(kGpuUsePercent, use.gpu_percent);
    }
    Memory memory{};
    if (ask_memory != nullptr && ask_memory(device, &memory) == kAnswered) {
      add(kGpuMemory, memory.total);
      add(kGpuMemoryUsed, memory.used);
    }
    unsigned milliwatts = 0, celsius = 0;
    if (ask_power != nullptr && ask_power(device, &milliwatts) == kAnswered) {
      add(kGpuMilliwatts, milliwatts);
    }
    if (ask_heat != nullptr && ask_heat(device, kGpuSensor, &celsius) == kAnswered) {
      add(kGpuCelsius, celsius);
    }
  }
  return found;
}

}  // namespace ddprun::agent
