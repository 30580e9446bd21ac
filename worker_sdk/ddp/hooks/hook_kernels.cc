// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/hook_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace ddprun::hooks {
namespace {

constexpr float kSmallest = 1e-36F;  // a block with a smaller a is zero: 127 / a must be finite
constexpr std::uint32_t kInfinityBits = 0x7f800000;

// Magnitudes compared as integers have the order of the numbers, with NaN above infinity.
std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest;
}

// Rounds to the nearest integer, for |value| < 2^22: the sum has no room for a fraction. A loop
// over std::rint would call the C library for each element.
float round_to_even(float value) {
  constexpr float kNoFraction = 12582912;  // 1.5 · 2^23
  return (value + kNoFraction) - kNoFraction;
}

// Sums use this many lanes, which the compiler can keep in vector registers; it may not reorder
// sums.
constexpr std::size_t kLanes = 16;

float dot(const float* a, const float* b, std::size_t count) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

void add_scaled(float* to, float factor, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

float length_of(const float* vector, std::size_t count) {
  double sum = 0;  // float64, for squares of small gradients are below float32's range
  for (std::size_t i = 0; i < count; ++i) {
    sum += static_cast<double>(vector[i]) * static_cast<double>(vector[i]);
  }
  return static_cast<float>(std::sqrt(sum));
}

void scale_to_unit(float* vector, std::size_t length, float norm) {
  for (std::size_t i = 0; i < length; ++i) vector[i] /= norm;
}

// Returns false if only rounding errors are left of the vector.
bool make_orthogonal(float* vectors, std::size_t number, std::size_t length) {
  constexpr float kNothing = 1e-5F;
  float* const vector = vectors + number * length;
  float norm = length_of(vector, length);
  if (!(norm > 0)) return std::isnan(norm);
  scale_to_unit(vector, length, norm);
  // It runs twice: after the first pass the vector may still be far from orthogonal.
  for (int pass = 0; pass < 2 && number > 0; ++pass) {
    for (std::size_t before = 0; before < number; ++before) {
      const float* const other = vectors + before * length;
      add_scaled(vector, -dot(vector, other, length), other, length);
    }
    norm = length_of(vector, length);
    if (norm < kNothing) return false;
    scale_to_unit(vector, length, norm);
  }
  return true;
}

}  // namespace

void encode_int8(const float* values, std::size_t count, float* scales, std::int8_t* codes) {
  for (std::size_t begin = 0; begin < count; begin += kInt8Block, ++scales) {
    const std::size_t length = std::min(kInt8Block, count - begin);
    const float* const from = values + begin;
    std::int8_t* const to = codes + begin;
    const std::uint32_t bits = largest_magnitude(from, length);
    const auto largest = std::bit_cast<float>(bits);
    if (bits >= kInfinityBits || largest < kSmallest) {
      *scales = bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
      std::fill_n(to, length, std::int8_t{0});
      continue;
    }
    *scales = largest / 127;
    const float inverse = 127 / largest;
    for (std::size_t i = 0; i < length; ++i) {
      to[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(round_to_even(from[i] * inverse)));
    }
  }
}

void add_int8(float* sums, std::size_t count, const float* scales, const std::int8_t* codes) {
  for (std::size_t begin = 0; begin < count; begin += kInt8Block, ++scales) {
    const std::size_t end = std::min(begin + kInt8Block, count);
    const float scale = *scales;
    for (std::size_t i = begin; i < end; ++i) sums[i] += scale * static_cast<float>(codes[i]);
  }
}

void multiply(const float* m, const float* q, const MatrixSize& size, float* p) {
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t k = 0; k < size.rank; ++k) {
      p[k * size.rows + i] = dot(m + i * size.columns, q + k * size.columns, size.columns);
    }
  }
}

void multiply_transposed(const float* m, const float* p, const MatrixSize& size, float* q) {
  std::fill_n(q, size.q_count(), 0.0F);
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t k = 0; k < size.rank; ++k) {
      add_scaled(q + k * size.columns, p[k * size.rows + i], m + i * size.columns, size.columns);
    }
  }
}

void row_of_product(const float* p, const float* q, const MatrixSize& size, std::size_t row,
                    float* result) {
  std::fill_n(result, size.columns, 0.0F);
  for (std::size_t k = 0; k < size.rank; ++k) {
    add_scaled(result, p[k * size.rows + row], q + k * size.columns, size.columns);
  }
}

void orthogonalize(float* vectors, std::size_t num, std::size_t length, const Replace& replace) {
  for (std::size_t number = 0; number < num; ++number) {
    if (make_orthogonal(vectors, number, length)) continue;
    float* const vector = vectors + number * length;
    if (replace) {
      replace(number, vector);
      if (make_orthogonal(vectors, number, length)) continue;
    }
    std::fill_n(vector, length, 0.0F);
  }
}

bool all_finite(const float* values, std::size_t count) {
  float sum = 0;  // 0 · infinity and 0 · NaN are NaN
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * 0.0F;
  return sum == 0;
}

}  // namespace ddprun::hooks
