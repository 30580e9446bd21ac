// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

// nvmlReturn_t.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr std::size_t kMaxSamples = 4096;  // more than the driver keeps
constexpr unsigned long long kFirstWindowUs = 1'000'000;
constexpr unsigned long long kNotAvailable = ~0ULL;  // used_gpu_memory where the driver hides it

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

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
    std::map<unsigned, std::pair<unsigned, unsigned>> sums;  // by pid: of percent, and how many
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

}  // namespace ddprun::agent
