// SPDX-License-Identifier: Apache-2.0
// Switches for tests on a GPU, out of DDPRUN_TEST_GPU: keys with a comma between, for example
// "shared,watchdog_us=100". A build without tests and bench has no switches: the variable is not
// read there.
#pragma once

#include <chrono>
#include <cstdlib>
#include <optional>

#include "common/env_names.h"

namespace ddprun::nccl {

struct TestGpu {
  // "shared": every rank takes device 0, and ranks of one GPU may use NCCL. NCCL before 2.30.3
  // wants a different NCCL_HOSTID for each of them.
  bool shared = false;
  // "watchdog_us=N": how often a watchdog looks while operations are under way.
  std::optional<std::chrono::microseconds> watchdog;
};

// Throws Error(kInvalidArgument) where a key is unknown or its number isn't one above 0. Null: no
// switch.
TestGpu test_gpu(const char* text = std::getenv(env::kTestGpu));

}  // namespace ddprun::nccl
