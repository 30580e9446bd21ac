// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/int8_codec.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace ddprun::hooks {
namespace {

constexpr float kSmallest = 1e-36F;  // 127 / a must be finite
constexpr std::uint32_t kInfinityBits = 0x7f800000;

// As integers magnitudes have the order of the numbers, with NaN above infinity.
std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest;
}

// To the nearest, for |value| < 2^22: the sum has no room for a fraction. A loop over std::rint
// would call the C library for each element.
float round_to_even(float value) {
  constexpr float kNoFraction = 12582912;  // 1.5 · 2^23
  return (value + kNoFraction) - kNoFraction;
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

}  // namespace ddprun::hooks
