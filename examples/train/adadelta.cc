// SPDX-License-Identifier: Apache-2.0
#include "examples/train/adadelta.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace ddprun::train {
namespace {

bool one_pass_works(const at::Tensor& parameter, const at::Tensor& gradient) {
  return parameter.is_cpu() && gradient.is_cpu() && parameter.is_non_overlapping_and_dense() &&
         parameter.strides() == gradient.strides() &&
         parameter.scalar_type() == gradient.scalar_type() &&
         (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble);
}

}  // namespace

Adadelta::Adadelta(std::vector<at::Tensor> parameters, const AdadeltaOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    states_.push_back({at::zeros_like(parameter), at::zeros_like(parameter)});
  }
}

std::vector<at::Tensor> Adadelta::averages() const {
  std::vector<at::Tensor> all;
  for (const State& state : states_) {
    all.push_back(state.square_average);
    all.push_back(state.delta_average);
  }
  return all;
}

void Adadelta::step() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    State& state = states_[i];
    if (!one_pass_works(parameter, gradient)) {
      step_with_tensor_operations(parameter, gradient, state);
      continue;
    }
    const auto count = static_cast<std::size_t>(parameter.numel());
    const auto update = [&]<typename Real>(Real) {
      adadelta_step(parameter.mutable_data_ptr<Real>(), gradient.const_data_ptr<Real>(),
                    state.square_average.mutable_data_ptr<Real>(),
                    state.delta_average.mutable_data_ptr<Real>(), count, options_);
    };
    parameter.scalar_type() == at::kFloat ? update(float{}) : update(double{});
  }
}

void Adadelta::step_with_tensor_operations(at::Tensor& parameter, const at::Tensor& gradient,
                                           State& state) {
  state.square_average.mul_(options_.rho).addcmul_(gradient, gradient, 1 - options_.rho);
  const at::Tensor deviation = state.square_average.add(options_.eps).sqrt_();
  const at::Tensor delta =
      state.delta_average.add(options_.eps).sqrt_().div_(deviation).mul_(gradient);
  state.delta_average.mul_(options_.rho).addcmul_(delta, delta, 1 - options_.rho);
  parameter.add_(delta, -options_.lr);
}

}  // namespace ddprun::train
