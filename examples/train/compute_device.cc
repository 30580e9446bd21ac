// SPDX-License-Identifier: Apache-2.0
#include "examples/train/compute_device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/load_cuda.h"

namespace ddprun::train {

void set_compute_threads(int num_threads, int local_world_size) {
  if (num_threads == 0) {
    if (const char* text = std::getenv(env::kOmpNumThreads)) {
      char* end = nullptr;
      const bool is_number = std::strtol(text, &end, 10) >= 1 && (*end == 0 || *end == ',');
      if (is_number) return;  // LibTorch has read it
      throw Error(ErrorCode::kInvalidArgument,
                  concat(env::kOmpNumThreads, "=\"", text,
                         "\" is no number of threads: set it to 1 or more, unset it, or give "
                         "--threads N"));
    }
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    num_threads = std::max(1, cores / std::max(1, local_world_size));
  }
  at::set_num_threads(num_threads);
}

int compute_threads() { return at::get_num_threads(); }

int num_visible_gpus() {
  return load_cuda().empty() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

void seed_generator(c10::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

void synchronize(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

}  // namespace ddprun::train
