// SPDX-License-Identifier: Apache-2.0
// The arithmetic of ddprun's own hooks: loops over all gradients, of float32, on one thread. The
// same input gives the same bits. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace ddprun::hooks {

// For Int8Hook: 8 bit integers with one scale for each block of this many elements.
inline constexpr std::size_t kInt8Block = 256;

constexpr std::size_t num_int8_blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}

// Encodes block by block, with a = the largest |value|. scale = a / 127, code = value · (127 / a)
// rounded to the nearest (ties to even). So value − scale · code is at most scale / 2, apart from
// rounding. A block whose a is below 1e-36 is all zero (scale 0); one with an infinity or NaN has
// the scale NaN.
void encode_int8(const float* values, std::size_t count, float* scales, std::int8_t* codes);

// sums[i] += scale · code.
void add_int8(float* sums, std::size_t count, const float* scales, const std::int8_t* codes);

// For PowerSGD: a matrix as a product of two narrow ones. M is `rows` × `columns`, row by row. P
// and Q are kept transposed; each of their `rank` columns is contiguous: p[k · rows + i], q[k ·
// columns + j].
struct MatrixSize {
  std::size_t rows = 0, columns = 0, rank = 0;
  std::size_t p_count() const { return rows * rank; }
  std::size_t q_count() const { return columns * rank; }
};

// P = M Q.
void multiply(const float* m, const float* q, const MatrixSize& size, float* p);

// Q = Mᵀ P.
void multiply_transposed(const float* m, const float* p, const MatrixSize& size, float* q);

// Computes one row of P Qᵀ, `columns` long.
void row_of_product(const float* p, const float* q, const MatrixSize& size, std::size_t row,
                    float* result);

// Gram-Schmidt on `num` adjacent vectors of `length`: makes each of unit length and orthogonal to
// those before it. A vector that is (nearly) a sum of those before it is handed to `replace` once.
// Without `replace`, or if that doesn't help, it becomes zero.
using Replace = std::function<void(std::size_t vector, float* values)>;
void orthogonalize(float* vectors, std::size_t num, std::size_t length,
                   const Replace& replace = nullptr);

bool all_finite(const float* values, std::size_t count);

}  // namespace ddprun::hooks
