// SPDX-License-Identifier: Apache-2.0
// The Adadelta optimiser, which LibTorch's C++ API lacks; torch.optim.Adadelta's results.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "examples/train/adadelta_step.h"

namespace ddprun::train {

class Adadelta {
 public:
  // Parameters of float32 or float64; leaves that require gradients.
  Adadelta(std::vector<at::Tensor> parameters, const AdadeltaOptions& options);

  void set_lr(double lr) { options_.lr = lr; }

  // Updates each parameter that has a gradient. One pass over memory where parameter and gradient
  // are on the CPU in the same dense layout, LibTorch's operations elsewhere.
  void step();

  // The running averages, two for each parameter in their order: with the learning rate all that a
  // training needs of this to go on later. Changed in place by step().
  std::vector<at::Tensor> averages() const;

 private:
  struct State {
    at::Tensor square_average;
    at::Tensor delta_average;
  };
  void step_with_tensor_operations(at::Tensor& parameter, const at::Tensor& gradient, State& state);

  std::vector<at::Tensor> parameters_;
  std::vector<State> states_;  // by parameter
  AdadeltaOptions options_;
};

}  // namespace ddprun::train
