// SPDX-License-Identifier: Apache-2.0
#include "examples/train/compute_device.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "common/env_names.h"

namespace ddprun::train {

void set_compute_threads(int num_threads, int local_world_size) {
  if (num_threads == 0) {
    if (std::getenv(env::kOmpNumThreads)) return;  // LibTorch has read it
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    num_threads = std::max(1, cores / std::max(1, local_world_size));
  }
  at::set_num_threads(num_threads);
}

}  // namespace ddprun::train
