// SPDX-License-Identifier: Apache-2.0
// Element-wise arithmetic of the collectives, with an AVX2 + F16C version chosen at run time.
// Pure: no I/O. Both versions give the same bits (no fused multiply-add, IEEE rounding).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::host {

// One instruction set's kernels. `count` is in elements. `destination` may be one of the sources;
// otherwise nothing overlaps. Integers wrap around. kAverage is combined like kSum. kMin and kMax
// ignore a NaN if the other is a number, as fmin() and fmax() do.
struct ReduceKernels {
  const char* name;
  // destination[i] = a[i] op b[i]; not for floats of 8 and 16 bits (widen them first).
  void (*combine)(void* destination, const void* a, const void* b, std::size_t count, DType dtype,
                  ReduceOp op);
  // values[i] /= divisor (integers: towards zero); not for bool, nor floats of 8 and 16 bits.
  void (*divide)(void* values, std::size_t count, DType dtype, int divisor);
  // Convert floats of 8 or 16 bits to float32 and back, to nearest even. A value beyond the largest
  // number of an 8-bit float becomes that number.
  void (*widen)(float* destination, const void* source, std::size_t count, DType dtype);
  void (*narrow)(void* destination, const float* source, std::size_t count, DType dtype);
  // memcpy for large blocks of any alignment.
  void (*copy)(void* destination, const void* source, std::size_t num_bytes);
};

// Returns the best kernels for this CPU.
const ReduceKernels& reduce_kernels();
// Returns every version that this CPU can run, the plain one first (for tests).
std::vector<const ReduceKernels*> available_reduce_kernels();

// memcpy, except that large blocks don't use the C library's. That took 3 times as long if source
// and destination differ in alignment, on CPUs with "rep movsb" (AMD EPYC, glibc 2.36).
void copy_bytes(void* destination, const void* source, std::size_t num_bytes);

// Returns the type that sums are kept in: float32 for floats of 8 and 16 bits, else the type
// itself.
DType accumulator_of(DType dtype);

// Bytes that reduce_block handles in one call; callers cut their work at this size.
inline constexpr std::size_t kReduceBlockBytes = std::size_t{32} << 10;

// destination = sources[0] op sources[1] op …, always in this order. Sources have elements of
// `dtype`, the destination those of accumulator_of(dtype); kAverage is not divided yet.
// `count * size_of(accumulator)` must be ≤ kReduceBlockBytes. `destination` overlaps no source,
// except that it may be sources[0] itself if dtype is its own accumulator.
void reduce_block(void* destination, const void* const* sources, std::size_t num_sources,
                  std::size_t count, DType dtype, ReduceOp op);

// Ends a reduction: divides for kAverage and rounds to `dtype`. It changes `accumulated`.
// `destination` may be `accumulated` if dtype is its own accumulator.
void finish_block(void* destination, void* accumulated, std::size_t count, DType dtype, ReduceOp op,
                  int world_size);

// Convert float16 to float32 and back, rounding to nearest even; for CPUs without F16C.
constexpr float float_from_float16(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  std::uint32_t exponent = (value >> 10) & 0x1fu;
  std::uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1f) {  // infinity, or a NaN made quiet as the hardware does
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((mantissa & 0x400u) == 0) {  // subnormal in float16, normal in float32
      mantissa <<= 1;
      --exponent;
    }
    mantissa &= 0x3ffu;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr std::uint16_t float16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // overflow
  if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);  // below half the smallest
  std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t shift = 13, base = 0;
  if (exponent >= 113) {
    base = (exponent - 113) << 10;  // the implicit bit adds the last 1 << 10
  } else {
    shift += 113 - exponent;  // subnormal result
  }
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  mantissa >>= shift;
  if (rest > half || (rest == half && (mantissa & 1u))) ++mantissa;
  return static_cast<std::uint16_t>(sign | (base + mantissa));
}

}  // namespace ddprun::host
