// SPDX-License-Identifier: Apache-2.0
// The optimisers' arithmetic on float32 arrays in the CPU's memory: one pass that prefetches, with
// an AVX2 version chosen at run time. Pure: no I/O. Every version gives the same bits, wherever an
// element lies in its array (no fused multiply-add, IEEE division and square root).
#pragma once

#include <cstddef>
#include <vector>

namespace ddprun {

// One update by Adam or AdamW. The bias corrections are this step's.
struct AdamStep {
  float gradient_factor = 1;  // −1: maximise
  float weight_decay = 0;     // added to the gradient, times the value (Adam)
  float value_factor = 1;     // 1 − lr × weight_decay (AdamW)
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.999F;
  float one_minus_beta2 = 0.001F;
  float root_factor = 1;    // 1 ÷ √(1 − beta2^step)
  float step_size = 1e-3F;  // lr ÷ (1 − beta1^step)
  float eps = 1e-8F;
};

// One update by SGD. `has_momentum` false: the momentum buffer may be null.
struct SgdStep {
  float gradient_factor = 1;  // −1: maximise
  float weight_decay = 0;
  float momentum = 0;
  float gradient_share = 1;  // 1 − dampening; 1 in the first update, with momentum 0
  float lr = 1e-3F;
  bool has_momentum = false;
  bool nesterov = false;
};

// Each array has `count` elements; none overlap. Gradients don't change.
struct UpdateKernels {
  const char* name;
  void (*adam)(const AdamStep& step, float* values, const float* gradients, float* averages,
               float* squares, std::size_t count);
  void (*sgd)(const SgdStep& step, float* values, const float* gradients, float* momenta,
              std::size_t count);
};

// Returns the best kernels for this CPU.
const UpdateKernels& update_kernels();
// Returns every version that this CPU can run, the plain one first (for tests).
std::vector<const UpdateKernels*> available_update_kernels();

}  // namespace ddprun
