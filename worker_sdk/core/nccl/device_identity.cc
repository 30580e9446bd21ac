// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/device_identity.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "common/boot_id.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/fnv1a.h"
#include "common/process_facts.h"

namespace ddprun::nccl {
namespace {

// What has chosen the GPUs that CUDA shows; empty: nothing has.
std::string visible_devices() {
  const char* value = std::getenv(env::kCudaVisibleDevices);
  return value ? std::string(" with ") + env::kCudaVisibleDevices + "=\"" + value + "\"" : "";
}

}  // namespace

std::string device_identity(CudaApi& cuda, int local_rank) {
  int num_devices = 0;
  if (const auto result = cuda.device_count(&num_devices); result != kCudaSuccess) {
    throw Error(ErrorCode::kUnsupported, "CUDA: " + cuda.error_text(result) + visible_devices());
  }
  if (num_devices == 0)
    throw Error(ErrorCode::kUnsupported, "CUDA sees no GPU" + visible_devices());
  if (local_rank >= num_devices) {
    throw Error(ErrorCode::kUnsupported, "LOCAL_RANK is " + std::to_string(local_rank) +
                                             ", but CUDA sees " + std::to_string(num_devices) +
                                             (num_devices == 1 ? " GPU" : " GPUs") +
                                             visible_devices());
  }
  std::string uuid;
  if (const auto result = cuda.device_uuid(local_rank, &uuid); result != kCudaSuccess) {
    throw Error(ErrorCode::kUnsupported,
                "the UUID of GPU " + std::to_string(local_rank) + ": " + cuda.error_text(result));
  }
  return uuid;
}

std::string gpu_identity(CudaApi& cuda, int local_rank) {
  std::string bus_id;
  if (const auto result = cuda.device_pci_bus_id(local_rank, &bus_id); result != kCudaSuccess) {
    throw Error(ErrorCode::kUnsupported, "the PCI bus id of GPU " + std::to_string(local_rank) +
                                             ": " + cuda.error_text(result));
  }
  const char* host = std::getenv("NCCL_HOSTID");
  const bool is_given = host != nullptr && *host != '\0';
  char id[17];
  std::snprintf(id, sizeof id, "%016" PRIx64,
                fnv1a((is_given ? host : host_name() + "/" + boot_id()) + "/" + bus_id));
  return id;
}

}  // namespace ddprun::nccl
