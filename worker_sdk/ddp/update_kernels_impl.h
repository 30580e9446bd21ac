// SPDX-License-Identifier: Apache-2.0
// The loops behind UpdateKernels, compiled once per instruction set, without fused multiply-add.
// Rule: everything here has internal linkage and calls no inline function of another header. So no
// code built for a newer CPU can be merged into the program's common code.
#pragma once

#include "worker_sdk/ddp/update_kernels.h"

namespace ddprun {
namespace {

using std::size_t;

// Elements of a cache line, and how many elements ahead of the arithmetic memory is prefetched.
constexpr size_t kLine = 16, kAhead = 32 * kLine;

template <bool kWeightDecay>
inline void adam_element(const AdamStep& step, float* __restrict value, float gradient,
                         float* __restrict average, float* __restrict square) {
  float g = gradient * step.gradient_factor;
  if (kWeightDecay) g += *value * step.weight_decay;
  const float m = *average + step.one_minus_beta1 * (g - *average);
  const float v = *square * step.beta2 + g * g * step.one_minus_beta2;
  const float root = __builtin_sqrtf(v) * step.root_factor + step.eps;
  *average = m;
  *square = v;
  *value = *value * step.value_factor - step.step_size * m / root;
}

template <bool kWeightDecay>
void adam_loop(const AdamStep& given, float* __restrict values, const float* __restrict gradients,
               float* __restrict averages, float* __restrict squares, size_t count) {
  const AdamStep step = given;
  size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(gradients + i + kAhead, 0);
    __builtin_prefetch(values + i + kAhead, 1);
    __builtin_prefetch(averages + i + kAhead, 1);
    __builtin_prefetch(squares + i + kAhead, 1);
    for (size_t j = i; j < i + kLine; ++j) {
      adam_element<kWeightDecay>(step, values + j, gradients[j], averages + j, squares + j);
    }
  }
  for (; i < count; ++i) {
    adam_element<kWeightDecay>(step, values + i, gradients[i], averages + i, squares + i);
  }
}

void adam(const AdamStep& step, float* values, const float* gradients, float* averages,
          float* squares, size_t count) {
  // Without weight decay infinite values must stay infinite.
  const auto loop = step.weight_decay != 0 ? adam_loop<true> : adam_loop<false>;
  loop(step, values, gradients, averages, squares, count);
}

template <bool kWeightDecay>
inline float decayed(const SgdStep& step, float value, float gradient) {
  const float g = gradient * step.gradient_factor;
  return kWeightDecay ? g + value * step.weight_decay : g;
}

template <bool kWeightDecay, bool kNesterov>
inline void momentum_element(const SgdStep& step, float* __restrict value, float gradient,
                             float* __restrict momentum) {
  const float g = decayed<kWeightDecay>(step, *value, gradient);
  const float m = *momentum * step.momentum + g * step.gradient_share;
  *momentum = m;
  *value -= step.lr * (kNesterov ? g + m * step.momentum : m);
}

template <bool kWeightDecay, bool kNesterov>
void momentum_loop(const SgdStep& given, float* __restrict values,
                   const float* __restrict gradients, float* __restrict momenta, size_t count) {
  const SgdStep step = given;
  size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(gradients + i + kAhead, 0);
    __builtin_prefetch(values + i + kAhead, 1);
    __builtin_prefetch(momenta + i + kAhead, 1);
    for (size_t j = i; j < i + kLine; ++j) {
      momentum_element<kWeightDecay, kNesterov>(step, values + j, gradients[j], momenta + j);
    }
  }
  for (; i < count; ++i) {
    momentum_element<kWeightDecay, kNesterov>(step, values + i, gradients[i], momenta + i);
  }
}

template <bool kWeightDecay>
void sgd_loop(const SgdStep& given, float* __restrict values, const float* __restrict gradients,
              size_t count) {
  const SgdStep step = given;
  size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(gradients + i + kAhead, 0);
    __builtin_prefetch(values + i + kAhead, 1);
    for (size_t j = i; j < i + kLine; ++j) {
      values[j] -= step.lr * decayed<kWeightDecay>(step, values[j], gradients[j]);
    }
  }
  for (; i < count; ++i) {
    values[i] -= step.lr * decayed<kWeightDecay>(step, values[i], gradients[i]);
  }
}

void sgd(const SgdStep& step, float* values, const float* gradients, float* momenta, size_t count) {
  const bool decays = step.weight_decay != 0;
  if (!step.has_momentum) {
    return (decays ? sgd_loop<true> : sgd_loop<false>)(step, values, gradients, count);
  }
  const auto plain = decays ? momentum_loop<true, false> : momentum_loop<false, false>;
  const auto nesterov = decays ? momentum_loop<true, true> : momentum_loop<false, true>;
  (step.nesterov ? nesterov : plain)(step, values, gradients, momenta, count);
}

}  // namespace
}  // namespace ddprun
