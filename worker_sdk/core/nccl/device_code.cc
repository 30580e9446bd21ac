// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/device_code.h"

#include <charconv>
#include <set>

#include "common/error.h"

namespace ddprun::nccl {
namespace {

std::string capability(int number) {
  return std::to_string(number / 10) + "." + std::to_string(number % 10);
}

// "sm_90": GPUs of the same major and no lower minor. "sm_90a": this very one. "compute_90" is
// translated when it is loaded: GPUs from this one on.
bool runs_on(int wanted, int made_for, bool is_source, char suffix) {
  if (is_source) return suffix == 'a' ? wanted == made_for : wanted >= made_for;
  if (suffix == 'a') return wanted == made_for;
  return wanted / 10 == made_for / 10 && wanted >= made_for;
}

}  // namespace

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
  std::string text;
  for (const int each : seen) text += (text.empty() ? "" : ", ") + capability(each);
  return text;
}

void check_code(CudaApi& cuda, int device, const std::string& whose, std::string_view flags) {
  int major = 0, minor = 0;
  if (cuda.compute_capability(device, &major, &minor) != kCudaSuccess) return;
  const std::string others = made_for_others(flags, major, minor);
  if (others.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) +
                  "." + std::to_string(minor) + ", and " + whose + " is built for " + others +
                  ": use one that is built " + "for this GPU");
}

}  // namespace ddprun::nccl
