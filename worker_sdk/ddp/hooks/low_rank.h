// SPDX-License-Identifier: Apache-2.0
// A matrix as a product of two narrow ones: the arithmetic of PowerSGD. float32, one thread, the
// same bits for the same input. Pure.
//
// M is `rows` × `columns`, row by row. P and Q are kept transposed, each of their `rank` columns in
// one piece: p[k · rows + i], q[k · columns + j].
#pragma once

#include <cstddef>
#include <functional>

namespace ddprun::hooks {

struct MatrixSize {
  std::size_t rows = 0, columns = 0, rank = 0;
  std::size_t p_count() const { return rows * rank; }
  std::size_t q_count() const { return columns * rank; }
};

// P = M Q.
void multiply(const float* m, const float* q, const MatrixSize& size, float* p);

// Q = Mᵀ P.
void multiply_transposed(const float* m, const float* p, const MatrixSize& size, float* q);

// One row of P Qᵀ, `columns` long.
void row_of_product(const float* p, const float* q, const MatrixSize& size, std::size_t row,
                    float* result);

// Gram-Schmidt on `num` vectors of `length`, side by side: unit length, each orthogonal to those
// before it. One that is (nearly) a sum of those before it is handed to `replace` once, else, and
// if that is no better, it becomes zero.
using Replace = std::function<void(std::size_t vector, float* values)>;
void orthogonalize(float* vectors, std::size_t num, std::size_t length,
                   const Replace& replace = nullptr);

bool all_finite(const float* values, std::size_t count);

}  // namespace ddprun::hooks
