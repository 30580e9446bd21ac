// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimization.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "apps/train/adadelta_step.h"
#include "common/text.h"
#include "worker_sdk/ddp/lr_schedule.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/gradient_clipping.h"
#include "worker_sdk/torch/sharded_optimizer.h"

namespace ddprun::train {

class Optimization::Algorithm {
 public:
  virtual ~Algorithm() = default;
  virtual std::vector<at::Tensor> gradients() = 0;
  virtual void clip(const ClipOptions& options) { clip_gradient_norm(gradients(), options); }
  // `overflow` is GradScaler's answer; undefined: there is no scaler.
  virtual void step(double lr, const at::Tensor& overflow) = 0;
  virtual std::vector<NamedTensor> named_tensors() = 0;
  virtual void loaded(const std::vector<NamedTensor>&) {}
};

namespace {

// Adadelta, which LibTorch's C++ API lacks, with torch.optim.Adadelta's results.
class AdadeltaAlgorithm : public Optimization::Algorithm {
 public:
  AdadeltaAlgorithm(const Options& options, torch::nn::Module& module)
      : options_{.lr = options.lr} {
    const c10::NoGradGuard no_grad;
    for (const auto& item : module.named_parameters()) {
      const at::Tensor& parameter = item.value();
      items_.push_back(
          {item.key(), parameter, at::zeros_like(parameter), at::zeros_like(parameter)});
    }
  }

  std::vector<at::Tensor> gradients() override {
    std::vector<at::Tensor> all;
    for (const Item& item : items_) {
      if (item.parameter.grad().defined()) all.push_back(item.parameter.grad());
    }
    return all;
  }

  void step(double lr, const at::Tensor& overflow) override {
    if (overflow.defined() && overflow.item<float>() != 0) return;
    options_.lr = lr;
    const c10::NoGradGuard no_grad;
    for (Item& item : items_) {
      const at::Tensor gradient = item.parameter.grad();
      if (gradient.defined()) update(item, gradient);
    }
  }

  std::vector<NamedTensor> named_tensors() override {
    std::vector<NamedTensor> tensors;
    for (const Item& item : items_) {
      tensors.push_back({concat("adadelta.", item.name, ".square_average"), item.square_average});
      tensors.push_back({concat("adadelta.", item.name, ".delta_average"), item.delta_average});
    }
    return tensors;
  }

 private:
  struct Item {
    std::string name;
    at::Tensor parameter;  // float32 or float64
    at::Tensor square_average, delta_average;
  };

  static bool one_pass_works(const at::Tensor& parameter, const at::Tensor& gradient) {
    return parameter.is_cpu() && gradient.is_cpu() && parameter.is_non_overlapping_and_dense() &&
           parameter.strides() == gradient.strides() &&
           parameter.scalar_type() == gradient.scalar_type() &&
           (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble);
  }

  // Updates in one pass over memory if possible, else by LibTorch's operations.
  void update(Item& item, const at::Tensor& gradient) const {
    at::Tensor &parameter = item.parameter, &square_average = item.square_average;
    at::Tensor& delta_average = item.delta_average;
    if (!one_pass_works(parameter, gradient)) {
      square_average.mul_(options_.rho).addcmul_(gradient, gradient, 1 - options_.rho);
      const at::Tensor deviation = square_average.add(options_.eps).sqrt_();
      const at::Tensor delta =
          delta_average.add(options_.eps).sqrt_().div_(deviation).mul_(gradient);
      delta_average.mul_(options_.rho).addcmul_(delta, delta, 1 - options_.rho);
      parameter.add_(delta, -options_.lr);
      return;
    }
    const auto in_one_pass = [&]<typename Real>(Real) {
      adadelta_step(parameter.mutable_data_ptr<Real>(), gradient.const_data_ptr<Real>(),
                    square_average.mutable_data_ptr<Real>(), delta_average.mutable_data_ptr<Real>(),
                    static_cast<std::size_t>(gradient.numel()), options_);
    };
    parameter.scalar_type() == at::kFloat ? in_one_pass(float{}) : in_one_pass(double{});
  }

  std::vector<Item> items_;
  AdadeltaOptions options_;
};

UpdateRule rule_of(const Options& options) {
  switch (options.optimizer) {
    case OptimizerChoice::kSgd:
      return SgdRule{
          .lr = options.lr, .momentum = options.momentum, .weight_decay = options.weight_decay};
    case OptimizerChoice::kAdam:
      return AdamRule{.lr = options.lr, .weight_decay = options.weight_decay};
    default:
      return AdamWRule{.lr = options.lr, .weight_decay = options.weight_decay};
  }
}

// Makes two groups: weights decay, biases don't.
std::vector<ParameterGroup> groups_of(const Options& options, const torch::nn::Module& module) {
  std::vector<ParameterGroup> groups(2, {{}, rule_of(options)});
  std::visit([](auto& rule) { rule.weight_decay = 0; }, groups[1].rule);
  for (NamedTensor& parameter : trainable_parameters(module)) {
    groups[options.weight_decay > 0 && parameter.tensor.dim() < 2].parameters.push_back(parameter);
  }
  return groups;
}

// An algorithm that a FlatOptimizer or a ShardedOptimizer carries out.
template <typename Optimizer>
class FlatAlgorithm : public Optimization::Algorithm {
 public:
  // `ddp` has the form that the optimiser takes.
  template <typename Ddp>
  FlatAlgorithm(const Options& options, torch::nn::Module& module, Ddp&& ddp)
      : prefix_(concat(to_string(options.optimizer), ".")),
        optimizer_(groups_of(options, module), std::forward<Ddp>(ddp)) {}

  std::vector<at::Tensor> gradients() override { return optimizer_.gradients(); }

  void step(double lr, const at::Tensor& overflow) override {
    optimizer_.set_lr(lr);
    optimizer_.step(overflow);
  }

  std::vector<NamedTensor> named_tensors() override {
    std::vector<NamedTensor> tensors;
    for (const NamedState& state : optimizer_.state()) {
      tensors.push_back({concat(prefix_, state.parameter, ".", state.name), state.tensor});
    }
    return tensors;
  }

 protected:
  const std::string prefix_;
  Optimizer optimizer_;
};

class ShardedAlgorithm : public FlatAlgorithm<ShardedOptimizer> {
 public:
  using FlatAlgorithm::FlatAlgorithm;

  void clip(const ClipOptions& options) override { optimizer_.clip_gradient_norm(options); }

  void loaded(const std::vector<NamedTensor>& tensors) override {
    std::vector<NamedState> state;
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with(prefix_)) continue;
      const std::size_t end = name.rfind('.');
      state.push_back({name.substr(prefix_.size(), end - prefix_.size()),
                       std::string_view(name).substr(end + 1), tensor});
    }
    optimizer_.load_state(state);
  }
};

}  // namespace

Optimization::Optimization(const Options& options, torch::nn::Module& module, DdpBase& ddp,
                           Communicator& communicator, c10::Device device,
                           std::uint64_t steps_per_epoch)
    : options_(options), device_(device), steps_per_epoch_(steps_per_epoch) {
  if (options.amp == AmpChoice::kFp16) scaler_.emplace(device, &communicator);
  if (options.optimizer == OptimizerChoice::kAdadelta) {
    algorithm_ = std::make_unique<AdadeltaAlgorithm>(options, module);
  } else if (options.zero != ZeroStage::kOff) {
    algorithm_ = std::make_unique<ShardedAlgorithm>(options, module, ddp);
  } else {
    algorithm_ = std::make_unique<FlatAlgorithm<FlatOptimizer>>(options, module, &ddp);
  }
}

Optimization::~Optimization() = default;

double Optimization::lr_at(std::uint64_t step, int epoch) const {
  const std::uint64_t warmup = options_.warmup_steps;
  if (options_.schedule == ScheduleChoice::kCosine) {
    const auto num_epochs = static_cast<std::uint64_t>(options_.num_epochs);
    return ddprun::lr_at({.base_lr = options_.lr,
                          .warmup_steps = warmup,
                          .total_steps = num_epochs * steps_per_epoch_},
                         step);
  }
  const double gamma = options_.schedule == ScheduleChoice::kExponential ? options_.gamma : 1;
  const double lr = step_lr(options_.lr, gamma, 1, static_cast<std::uint64_t>(epoch));
  return step < warmup ? linear_lr(lr, WarmupCosine().warmup_start_factor, 1, warmup, step) : lr;
}

Autocast Optimization::autocast() const {
  const at::ScalarType dtype = options_.amp == AmpChoice::kFp16 ? at::kHalf : at::kBFloat16;
  return {device_.type(), dtype, options_.amp != AmpChoice::kOff};
}

at::Tensor Optimization::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Optimization::step(std::uint64_t step, int epoch) {
  at::Tensor overflow;
  if (scaler_) overflow = scaler_->unscale_async(algorithm_->gradients());
  if (options_.clip_norm > 0) algorithm_->clip({.max_norm = options_.clip_norm});
  algorithm_->step(lr_at(step, epoch), overflow);
  if (scaler_) scaler_->update();
}

void Optimization::loaded(const std::vector<NamedTensor>& tensors) { algorithm_->loaded(tensors); }

std::vector<NamedTensor> Optimization::named_tensors() {
  std::vector<NamedTensor> tensors = algorithm_->named_tensors();
  if (!scaler_) return tensors;
  for (const auto& [name, tensor] : scaler_->state()) {
    tensors.push_back({concat("scaler.", name), tensor});
  }
  return tensors;
}

}  // namespace ddprun::train
