// SPDX-License-Identifier: Apache-2.0
// Reading and writing one element of any dtype as a double, for fakes and expected results. Exact
// for the small whole numbers that tests use.
#pragma once

#include <cstddef>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::test {

double load_element(const void* data, std::size_t index, DType dtype);
void store_element(void* data, std::size_t index, DType dtype, double value);

// One step of a reduction; kAverage adds (divide at the end).
double combine(ReduceOp op, double a, double b);

}  // namespace ddprun::test
