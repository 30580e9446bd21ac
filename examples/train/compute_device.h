// SPDX-License-Identifier: Apache-2.0
// What LibTorch computes with in this process.
#pragma once

namespace ddprun::train {

// Sets LibTorch's compute threads of this process; see Options::num_threads.
void set_compute_threads(int num_threads, int local_world_size);

}  // namespace ddprun::train
