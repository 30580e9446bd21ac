// SPDX-License-Identifier: Apache-2.0
// float32 as 8 bit integers with one scale for each block of 256. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::hooks {

inline constexpr std::size_t kInt8Block = 256;

constexpr std::size_t num_int8_blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}

// Block by block, with a = the largest |value|: scale = a / 127, code = value · (127 / a) rounded
// to the nearest (ties to even), so value − scale · code is at most scale / 2, rounding aside. A
// block whose a is below 1e-36 is all zero (scale 0); one with an infinity or NaN has the scale
// NaN.
void encode_int8(const float* values, std::size_t count, float* scales, std::int8_t* codes);

// sums[i] += scale · code.
void add_int8(float* sums, std::size_t count, const float* scales, const std::int8_t* codes);

}  // namespace ddprun::hooks
