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

inline bool is_float8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}

inline bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16 || is_float8(dtype);
}

// Does one step of a reduction. kAverage only adds; the caller divides at the end. As in NCCL, kMin
// and kMax prefer a number to NaN.
double combine(ReduceOp op, double a, double b);

}  // namespace ddprun::test
