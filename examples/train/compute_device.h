// SPDX-License-Identifier: Apache-2.0
// What LibTorch computes with in this process.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace ddprun::train {

// Sets LibTorch's compute threads of this process; see Options::num_threads.
// Error(kInvalidArgument) where OMP_NUM_THREADS counts and is no number of threads.
void set_compute_threads(int num_threads, int local_world_size);

int compute_threads();

// 0 where LibTorch's CUDA can't be loaded, too.
int num_visible_gpus();

// The default generator of `device` (dropout) begins anew from `seed`.
void seed_generator(c10::Device device, std::uint64_t seed);

// Returns when all that was started on `device` is done; at once on the CPU.
void synchronize(c10::Device device);

}  // namespace ddprun::train
