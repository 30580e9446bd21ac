// SPDX-License-Identifier: Apache-2.0
#include "tests/support/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ddprun::test {
namespace {

double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Converts by truncation. Only for zero, normal numbers and NaN.
std::uint16_t to_half(double value) {
  if (value == 0) return 0;
  if (std::isnan(value)) return 0x7e00;
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto bits = static_cast<int>(std::ldexp(mantissa, 11)) & 1023;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | bits);
}

// An 8-bit float format: its mantissa's bits and its exponent's bias. Without NaN and infinity.
struct Float8 {
  int mantissa_bits, bias;
};

Float8 format_of(DType dtype) { return dtype == DType::kFloat8E4M3 ? Float8{3, 7} : Float8{2, 15}; }

double from_float8(std::uint8_t bits, Float8 format) {
  const int exponent = (bits & 0x7f) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int leading = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const double value =
      std::ldexp(leading + mantissa, std::max(exponent, 1) - format.bias - format.mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

// Rounds to nearest even. A value beyond the largest one becomes the largest one.
std::uint8_t to_float8(double value, DType dtype) {
  const Float8 format = format_of(dtype);
  int exponent = -100;  // zero's: below every format's smallest
  if (value != 0) std::frexp(value, &exponent);
  const int power = std::max(exponent - 1, 1 - format.bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - power));
  const int bits = static_cast<int>(units) + ((power + format.bias - 1) << format.mantissa_bits);
  const int kept = std::min(bits, dtype == DType::kFloat8E4M3 ? 0x7e : 0x7b);
  return static_cast<std::uint8_t>(std::signbit(value) ? kept | 0x80 : kept);
}

}  // namespace

double load_element(const void* data, std::size_t index, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[index];
    case DType::kFloat64:
      return static_cast<const double*>(data)[index];
    case DType::kFloat16:
      return from_half(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kBFloat16:
      return std::bit_cast<float>(
          static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[index]) << 16);
    case DType::kInt8:
      return static_cast<const std::int8_t*>(data)[index];
    case DType::kUInt8:
    case DType::kBool:
      return static_cast<const std::uint8_t*>(data)[index];
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return from_float8(static_cast<const std::uint8_t*>(data)[index], format_of(dtype));
    case DType::kInt32:
      return static_cast<const std::int32_t*>(data)[index];
    case DType::kInt64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
  }
  return 0;
}

void store_element(void* data, std::size_t index, DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kFloat64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[index] = to_half(value);
      return;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[index] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
      return;
    case DType::kInt8:
      static_cast<std::int8_t*>(data)[index] = static_cast<std::int8_t>(value);
      return;
    case DType::kUInt8:
      static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(value);
      return;
    case DType::kBool:
      static_cast<std::uint8_t*>(data)[index] = value != 0 ? 1 : 0;
      return;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      static_cast<std::uint8_t*>(data)[index] = to_float8(value, dtype);
      return;
    case DType::kInt32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
      return;
    case DType::kInt64:
      static_cast<std::int64_t*>(data)[index] = static_cast<std::int64_t>(value);
      return;
  }
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return a + b;
    case ReduceOp::kMin:
      return std::fmin(a, b);
    case ReduceOp::kMax:
      return std::fmax(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return 0;
}

}  // namespace ddprun::test
