// SPDX-License-Identifier: Apache-2.0
// The one rule for the buffers of all_gather and reduce_scatter, for every backend. Pure.
#pragma once

#include <string>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// What is wrong with `part`, one rank's elements, beside `whole`, those of all `size` ranks in rank
// order: types or counts that don't fit, or buffers that overlap otherwise than in place (`part` is
// the part of `rank` in `whole`). Empty: nothing.
std::string parts_problem(const TensorView& part, const TensorView& whole, int rank, int size);

}  // namespace ddprun
