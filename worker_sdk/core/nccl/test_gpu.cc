// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/test_gpu.h"

#include <sstream>
#include <string>

#include "common/error.h"

namespace ddprun::nccl {

TestGpu test_gpu([[maybe_unused]] const char* text) {
  TestGpu found;
#ifdef DDPRUN_HAS_TEST_GPU
  std::istringstream keys(text == nullptr ? "" : text);
  constexpr char kWatchdog[] = "watchdog_us=";
  for (std::string key; std::getline(keys, key, ',');) {
    const int micros =
        key.rfind(kWatchdog, 0) == 0 ? std::atoi(key.c_str() + sizeof kWatchdog - 1) : 0;
    if (key == "shared") {
      found.shared = true;
    } else if (micros > 0) {
      found.watchdog = std::chrono::microseconds(micros);
    } else {
      throw Error(ErrorCode::kInvalidArgument, std::string(env::kTestGpu) + ": unknown key \"" +
                                                   key + "\"; there are: shared, watchdog_us=N");
    }
  }
#endif
  return found;
}

}  // namespace ddprun::nccl
