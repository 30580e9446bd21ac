// SPDX-License-Identifier: Apache-2.0
// Reads and writes one element of any dtype as a double, for fakes and expected results. It is
// exact for the small whole numbers that tests use.
#pragma once

#include <cstddef>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::test {

double load_element(const void* data, std::size_t index, DType dtype);
void store_element(void* data, std::size_t index, DType dtype, double value);

// One step of a reduction. kAverage only adds; the caller divides at the end. As NCCL's, kMin and
// kMax pass NaN over if there is a number.
double combine(ReduceOp op, double a, double b);

}  // namespace ddprun::test
