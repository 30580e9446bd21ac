// SPDX-License-Identifier: Apache-2.0
// A plain implementation of the reductions, element by element, with which collectives are
// compared.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/elements.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {

using test::is_float;
using test::is_float8;

constexpr float float_from_bfloat16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

constexpr std::uint16_t bfloat16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline constexpr DType kAllTypes[] = {DType::kFloat32,    DType::kFloat64,   DType::kFloat16,
                                      DType::kBFloat16,   DType::kInt8,      DType::kUInt8,
                                      DType::kInt32,      DType::kInt64,     DType::kBool,
                                      DType::kFloat8E4M3, DType::kFloat8E5M2};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                       ReduceOp::kMax, ReduceOp::kProduct};

// Rank r's element i: small whole numbers and halves, exact in every type. `seed` moves them.
inline double input_value(int rank, std::size_t i, unsigned seed, ReduceOp op) {
  const unsigned mixed =
      (static_cast<unsigned>(i) * 2654435761u + static_cast<unsigned>(rank) * 97u + seed * 31u) >>
      7;
  if (op == ReduceOp::kProduct) return 1.0 + mixed % 2;  // with 8 ranks at most 2^8
  return static_cast<double>(mixed % 8);
}

inline void put(std::vector<std::byte>& bytes, std::size_t i, DType dtype, double value) {
  const auto store = [&](auto typed) {
    std::memcpy(&bytes[i * sizeof typed], &typed, sizeof typed);
  };
  switch (dtype) {
    case DType::kFloat32:
      return store(static_cast<float>(value));
    case DType::kFloat64:
      return store(value);
    case DType::kFloat16:
      return store(float16_from_float(static_cast<float>(value)));
    case DType::kBFloat16:
      return store(bfloat16_from_float(static_cast<float>(value)));
    case DType::kInt8:
      return store(static_cast<std::int8_t>(static_cast<std::int64_t>(value)));
    case DType::kUInt8:
      return store(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
    case DType::kInt32:
      return store(static_cast<std::int32_t>(value));
    case DType::kInt64:
      return store(static_cast<std::int64_t>(value));
    case DType::kBool:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return test::store_element(&bytes[i], 0, dtype, value);
  }
}

// The value that every rank must have. It is exact, because the inputs are. 8-bit products and sums
// wrap.
inline double expected_value(int world, std::size_t i, unsigned seed, ReduceOp op, DType dtype) {
  double result = input_value(0, i, seed, op);
  for (int rank = 1; rank < world; ++rank) {
    const double value = input_value(rank, i, seed, op);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        result += value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
    }
  }
  if (op != ReduceOp::kAverage) return result;
  if (dtype == DType::kFloat64) return result / world;
  const float quotient = static_cast<float>(result) / static_cast<float>(world);
  return is_float(dtype) ? static_cast<double>(quotient) : std::trunc(result / world);
}

}  // namespace ddprun::host
