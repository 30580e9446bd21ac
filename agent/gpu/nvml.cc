// SPDX-License-Identifier: Apache-2.0
#include "agent/gpu/nvml.h"

#include <dlfcn.h>

#include <cstdlib>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

// nvmlReturn_t.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
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
  if (!init || !shutdown_ || !count_ || !handle_ || !running_) {
    throw Error(ErrorCode::kUnsupported, file + " is too old to list processes (driver 510 can)");
  }
  if (const int status = init(); status != kSuccess) {
    throw Error(ErrorCode::kUnsupported, concat("nvmlInit: NVML error ", status));
  }
}

Nvml::~Nvml() { shutdown_(); }

std::vector<GpuProcess> Nvml::processes() const {
  std::vector<GpuProcess> found;
  unsigned num_devices = 0;
  if (count_(&num_devices) != kSuccess) return found;
  for (unsigned index = 0; index < num_devices; ++index) {
    Device device = nullptr;
    if (handle_(index, &device) != kSuccess) continue;
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

}  // namespace ddprun::agent
