// SPDX-License-Identifier: Apache-2.0
// The loops behind ReduceKernels, compiled once per instruction set.
// Rule: everything here has internal linkage and calls no inline function of another header. So no
// code built for a newer CPU can be merged into the program's common code. Only the branch without
// F16C, for the common instruction set, calls two functions of reduce_kernels.h.
#pragma once

#if defined(__AVX2__) && !defined(__F16C__)
#error "AVX2 comes with -mf16c here"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {
namespace {

using std::size_t;

// Signed overflow is undefined, so sums and products use the unsigned type of the same size.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<std::int8_t> {
  using Type = std::uint8_t;
};
template <>
struct Arithmetic<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Arithmetic<std::int64_t> {
  using Type = std::uint64_t;
};

template <typename T>
bool is_nan(T value) {
  return value != value;
}

// The loops may have destination == a: ivdep tells GCC that this is no dependency. clang doesn't
// know ivdep, and compares the addresses.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
template <typename T>
void combine_typed(void* destination, const void* left, const void* right, size_t count,
                   ReduceOp op) {
  using A = typename Arithmetic<T>::Type;
  T* out = static_cast<T*>(destination);
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<T>(static_cast<A>(a[i]) + static_cast<A>(b[i]));
      }
      return;
    case ReduceOp::kProduct:
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<T>(static_cast<A>(a[i]) * static_cast<A>(b[i]));
      }
      return;
    case ReduceOp::kMin:
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) out[i] = b[i] < a[i] || is_nan(a[i]) ? b[i] : a[i];
      return;
    case ReduceOp::kMax:
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) out[i] = b[i] > a[i] || is_nan(a[i]) ? b[i] : a[i];
      return;
  }
}
#pragma GCC diagnostic pop

// Calls `visit` with a zero of that type. Not for floats of 8 and 16 bits, which are widened
// before.
template <typename Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kUInt8:
    case DType::kBool:
      return visit(std::uint8_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return;
  }
}

void combine(void* destination, const void* a, const void* b, size_t count, DType dtype,
             ReduceOp op) {
  if (dtype == DType::kBool) {
    if (op == ReduceOp::kSum) op = ReduceOp::kMax;
    if (op == ReduceOp::kProduct) op = ReduceOp::kMin;
  }
  with_type(dtype, [=](auto zero) { combine_typed<decltype(zero)>(destination, a, b, count, op); });
}

template <typename T>
void divide_typed(void* values, size_t count, int divisor) {
  T* out = static_cast<T*>(values);
  if constexpr (std::is_integral_v<T>) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = static_cast<T>(static_cast<std::int64_t>(out[i]) / divisor);
    }
  } else if ((divisor & (divisor - 1)) == 0) {  // the inverse of a power of 2 is exact, and cheaper
    const T inverse = T{1} / static_cast<T>(divisor);
    for (size_t i = 0; i < count; ++i) out[i] *= inverse;
  } else {
    const T by = static_cast<T>(divisor);
    for (size_t i = 0; i < count; ++i) out[i] /= by;
  }
}

void divide(void* values, size_t count, DType dtype, int divisor) {
  with_type(dtype, [=](auto zero) { divide_typed<decltype(zero)>(values, count, divisor); });
}

// bfloat16 is converted inline: the vectoriser needs a loop without a call or a branch.
void widen_bfloat16(float* destination, const std::uint16_t* source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(source[i]) << 16;
    __builtin_memcpy(destination + i, &bits, sizeof bits);
  }
}

void narrow_bfloat16(std::uint16_t* destination, const float* source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, source + i, sizeof bits);
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    destination[i] = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

#ifdef __F16C__
void widen_float16(float* destination, const std::uint16_t* source, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(half));
  }
  for (; i < count; ++i) destination[i] = _cvtsh_ss(source[i]);
}

void narrow_float16(std::uint16_t* destination, const float* source, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination + i), half);
  }
  for (; i < count; ++i) destination[i] = _cvtss_sh(source[i], _MM_FROUND_TO_NEAREST_INT);
}
#else
void widen_float16(float* destination, const std::uint16_t* source, size_t count) {
  for (size_t i = 0; i < count; ++i) destination[i] = float_from_float16(source[i]);
}

void narrow_float16(std::uint16_t* destination, const float* source, size_t count) {
  for (size_t i = 0; i < count; ++i) destination[i] = float16_from_float(source[i]);
}
#endif

// A float of 8 bits in IEEE 754's layout (Micikevicius et al., "FP8 formats for deep learning",
// 2022).
struct Float8 {
  std::uint32_t mantissa_bits, bias;
  std::uint32_t largest, nan;  // without the sign
};
constexpr Float8 kE4M3{3, 7, 0x7e, 0x7f};
constexpr Float8 kE5M2{2, 15, 0x7b, 0x7f};

void widen_float8(float* destination, const std::uint8_t* source, size_t count,
                  const Float8& format) {
  const std::uint32_t shift = 23 - format.mantissa_bits;
  for (size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = source[i] & 0x7fu;
    std::uint32_t bits = (magnitude << shift) + ((127 - format.bias) << 23);
    if (magnitude >> format.mantissa_bits == 0) {  // zero and subnormal numbers
      const float unit = 1.0f / static_cast<float>(1u << (format.bias + format.mantissa_bits - 1));
      const float value = static_cast<float>(magnitude) * unit;
      __builtin_memcpy(&bits, &value, sizeof bits);
    } else if (magnitude > format.largest) {  // E5M2 has an infinity after it
      bits = magnitude == format.largest + 1 && magnitude != format.nan ? 0x7f800000u : 0x7fc00000u;
    }
    bits |= static_cast<std::uint32_t>(source[i] & 0x80u) << 24;
    __builtin_memcpy(destination + i, &bits, sizeof bits);
  }
}

void narrow_float8(std::uint8_t* destination, const float* source, size_t count,
                   const Float8& format) {
  for (size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, source + i, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t exponent = magnitude >> 23, least = 128 - format.bias;
    std::uint32_t shift = 23 - format.mantissa_bits;
    std::uint32_t mantissa = magnitude - ((least - 1) << 23);
    if (exponent < least) {  // a subnormal result
      mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      shift += least - exponent;
      if (shift > 25) shift = 25;  // nothing is left of the mantissa
    }
    const std::uint32_t is_odd = (mantissa >> shift) & 1u;
    std::uint32_t rounded = (mantissa + (1u << (shift - 1)) - 1 + is_odd) >> shift;
    if (rounded > format.largest) rounded = format.largest;
    if (magnitude > 0x7f800000u) rounded = format.nan;
    destination[i] = static_cast<std::uint8_t>((bits >> 24 & 0x80u) | rounded);
  }
}

void widen(float* destination, const void* source, size_t count, DType dtype) {
  if (dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2) {
    return widen_float8(destination, static_cast<const std::uint8_t*>(source), count,
                        dtype == DType::kFloat8E4M3 ? kE4M3 : kE5M2);
  }
  const auto* from = static_cast<const std::uint16_t*>(source);
  if (dtype == DType::kBFloat16) return widen_bfloat16(destination, from, count);
  widen_float16(destination, from, count);
}

void narrow(void* destination, const float* source, size_t count, DType dtype) {
  if (dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2) {
    return narrow_float8(static_cast<std::uint8_t*>(destination), source, count,
                         dtype == DType::kFloat8E4M3 ? kE4M3 : kE5M2);
  }
  auto* to = static_cast<std::uint16_t*>(destination);
  if (dtype == DType::kBFloat16) return narrow_bfloat16(to, source, count);
  narrow_float16(to, source, count);
}

#ifdef __AVX2__
void copy(void* destination, const void* source, size_t num_bytes) {
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  size_t i = 0;
  for (; i + 128 <= num_bytes; i += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
  if (i < num_bytes) __builtin_memcpy(to + i, from + i, num_bytes - i);
}
#else
void copy(void* destination, const void* source, size_t num_bytes) {
  __builtin_memcpy(destination, source, num_bytes);
}
#endif

}  // namespace
}  // namespace ddprun::host
