// SPDX-License-Identifier: Apache-2.0
// Element-wise arithmetic of the collectives, with an AVX2 + F16C version chosen at run time.
// Pure: no I/O. Both versions give the same bits (no fused multiply-add, IEEE rounding).
#pragma once

#include <cstddef>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::host {

// One instruction set's kernels. `count` is in elements; `destination` may be one of the sources,
// otherwise nothing overlaps. Integers wrap around. kAverage is combined like kSum. kMin and kMax
// keep the first operand when the operands don't compare (NaN).
struct ReduceKernels {
  const char* name;
  // destination[i] = a[i] op b[i]; float16 and bfloat16 are not accepted (widen them first).
  void (*combine)(void* destination, const void* a, const void* b, std::size_t count, DType dtype,
                  ReduceOp op);
  // values[i] /= divisor (integers: towards zero); not for float16 and bfloat16.
  void (*divide)(void* values, std::size_t count, DType dtype, int divisor);
  // float16 or bfloat16 → float32 and back, to nearest even.
  void (*widen)(float* destination, const void* source, std::size_t count, DType dtype);
  void (*narrow)(void* destination, const float* source, std::size_t count, DType dtype);
  // memcpy for large blocks of any alignment.
  void (*copy)(void* destination, const void* source, std::size_t num_bytes);
};

// The best for this CPU.
const ReduceKernels& reduce_kernels();
// Every version that this CPU can run, the plain one first (for tests).
std::vector<const ReduceKernels*> available_reduce_kernels();

// memcpy, except that large blocks don't go through the C library's: on CPUs with "rep movsb" it
// took 3 times as long where source and destination differ in alignment (AMD EPYC, glibc 2.36).
void copy_bytes(void* destination, const void* source, std::size_t num_bytes);

// The type sums are kept in: float32 for float16 and bfloat16, else the type itself.
DType accumulator_of(DType dtype);

// Bytes that reduce_block handles in one go; callers cut their work at this size.
inline constexpr std::size_t kReduceBlockBytes = std::size_t{32} << 10;

// destination = sources[0] op sources[1] op …, in this order, always. Elements of `dtype` come in;
// elements of accumulator_of(dtype) go out, and kAverage has not been divided yet.
// `count * size_of(accumulator)` must be ≤ kReduceBlockBytes. `destination` overlaps no source,
// except that it may be sources[0] itself where dtype is its own accumulator.
void reduce_block(void* destination, const void* const* sources, std::size_t num_sources,
                  std::size_t count, DType dtype, ReduceOp op);

// Ends a reduction: divides for kAverage and rounds to `dtype`. `accumulated` is changed.
// `destination` may be `accumulated` where dtype is its own accumulator.
void finish_block(void* destination, void* accumulated, std::size_t count, DType dtype, ReduceOp op,
                  int world_size);

}  // namespace ddprun::host
