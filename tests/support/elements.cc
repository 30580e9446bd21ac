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

// Truncates; zero and normal numbers only.
std::uint16_t to_half(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto bits = static_cast<int>(std::ldexp(mantissa, 11)) & 1023;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | bits);
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
      return static_cast<const std::uint8_t*>(data)[index];
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
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return 0;
}

}  // namespace ddprun::test
