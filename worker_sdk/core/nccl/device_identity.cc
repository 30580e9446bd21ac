// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/device_identity.h"

#include <unistd.h>

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <set>
#include <sstream>

#include "common/fnv1a.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::nccl {
namespace {

// Returns, for errors, the variable that chose the GPUs that CUDA shows. Empty: it isn't set.
std::string visible_devices() {
  const char* value = std::getenv(env::kCudaVisibleDevices);
  return value ? std::string(" with ") + env::kCudaVisibleDevices + "=\"" + value + "\"" : "";
}

std::string capability(int number) {
  return std::to_string(number / 10) + "." + std::to_string(number % 10);
}

// "sm_90" runs on GPUs of the same major and no lower minor, "sm_90a" only on this very one.
// "compute_90" is translated when it is loaded, for GPUs from this one on.
bool runs_on(int wanted, int made_for, bool is_source, char suffix) {
  if (is_source) return suffix == 'a' ? wanted == made_for : wanted >= made_for;
  if (suffix == 'a') return wanted == made_for;
  return wanted / 10 == made_for / 10 && wanted >= made_for;
}

}  // namespace

std::string device_identity(CudaApi& cuda, int local_rank) {
  int num_devices = 0;
  if (const auto result = cuda.device_count(&num_devices); result != kCudaSuccess) {
    throw_error(ErrorCode::kUnsupported, "CUDA: ", cuda.error_text(result), visible_devices());
  }
  if (num_devices == 0) throw_error(ErrorCode::kUnsupported, "CUDA sees no GPU", visible_devices());
  if (local_rank >= num_devices) {
    throw_error(ErrorCode::kUnsupported, "LOCAL_RANK is ", local_rank, ", but CUDA sees ",
                num_devices, num_devices == 1 ? " GPU" : " GPUs", visible_devices());
  }
  std::string uuid;
  if (const auto result = cuda.device_uuid(local_rank, &uuid); result != kCudaSuccess) {
    throw_error(ErrorCode::kUnsupported, "the UUID of GPU ", local_rank, ": ",
                cuda.error_text(result));
  }
  return uuid;
}

std::string gpu_identity(CudaApi& cuda, int local_rank) {
  std::string bus_id;
  if (const auto result = cuda.device_pci_bus_id(local_rank, &bus_id); result != kCudaSuccess) {
    throw_error(ErrorCode::kUnsupported, "the PCI bus id of GPU ", local_rank, ": ",
                cuda.error_text(result));
  }
  const char* host = std::getenv("NCCL_HOSTID");
  const bool is_given = host != nullptr && *host != '\0';
  char id[17];
  std::snprintf(id, sizeof id, "%016" PRIx64,
                fnv1a((is_given ? host : host_name() + "/" + boot_id()) + "/" + bus_id));
  return id;
}

std::string made_for_others(std::string_view flags, int major, int minor) {
  constexpr std::string_view kCode = "code=", kBinary = "sm_", kSource = "compute_";
  std::set<int> seen;
  for (auto at = flags.find(kCode); at != flags.npos; at = flags.find(kCode)) {
    flags.remove_prefix(at + kCode.size());
    // "code=sm_90", or a list: "code=[compute_90,sm_90]".
    std::string_view list =
        flags.substr(0, flags.find_first_of(flags.starts_with('[') ? "]" : " ;,"));
    while (!list.empty()) {
      const bool is_source = list.starts_with(kSource);
      if (!is_source && !list.starts_with(kBinary)) {
        list.remove_prefix(1);
        continue;
      }
      list.remove_prefix(is_source ? kSource.size() : kBinary.size());
      int made_for = 0;
      const auto [stop, error] = std::from_chars(list.data(), list.data() + list.size(), made_for);
      list.remove_prefix(static_cast<std::size_t>(stop - list.data()));
      if (error != std::errc()) continue;
      if (runs_on(major * 10 + minor, made_for, is_source, list.empty() ? ' ' : list[0])) return "";
      seen.insert(made_for);
    }
  }
  return listed(seen, ", ", capability);
}

void check_code(CudaApi& cuda, int device, const std::string& whose, std::string_view flags) {
  int major = 0, minor = 0;
  if (cuda.compute_capability(device, &major, &minor) != kCudaSuccess) return;
  const std::string others = made_for_others(flags, major, minor);
  if (others.empty()) return;
  throw_error(ErrorCode::kUnsupported, "GPU ", device, " has compute capability ", major, ".",
              minor, ", and ", whose, " is built for ", others,
              ": use one that is built for this GPU");
}

std::string ras_address(const std::string& run_id, const Endpoint& store) {
  return "localhost:" + std::to_string(21'000 + fnv1a(run_id + "\n" + to_string(store)) % 7'000);
}

TestGpu test_gpu(const char* text) {
  if (text == nullptr || *text == '\0') return {};
  return read_test_gpu(text, ::access((own_folder() + "/takes_test_gpu").c_str(), F_OK) == 0);
}

TestGpu read_test_gpu(std::string_view text, bool has_switches) {
  if (!text.empty() && !has_switches) {
    throw_invalid(env::kTestGpu,
                  " is set, and an installed program has no switches for tests: unset it");
  }
  TestGpu found;
  std::istringstream keys{std::string(text)};
  constexpr char kWatchdog[] = "watchdog_us=";
  for (std::string key; std::getline(keys, key, ',');) {
    const int micros =
        key.rfind(kWatchdog, 0) == 0 ? std::atoi(key.c_str() + sizeof kWatchdog - 1) : 0;
    if (key == "shared") {
      found.shared = true;
    } else if (micros > 0) {
      found.watchdog = std::chrono::microseconds(micros);
    } else {
      throw_invalid(env::kTestGpu, ": unknown key \"", key, "\"; there are: shared, watchdog_us=N");
    }
  }
  return found;
}

}  // namespace ddprun::nccl
