// SPDX-License-Identifier: Apache-2.0
// What LibTorch computes with in this process.
#pragma once

#include <string>

namespace ddprun::train {

// Empty where LibTorch can compute on a GPU here; else why it can't. Quick on a machine without
// one.
std::string why_no_gpu();

// Sets LibTorch's compute threads of this process; see Options::num_threads.
void set_compute_threads(int num_threads, int local_world_size);

}  // namespace ddprun::train
