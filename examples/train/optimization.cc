// SPDX-License-Identifier: Apache-2.0
#include "examples/train/optimization.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "common/log.h"
#include "examples/train/adadelta.h"
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
  // `overflow`: GradScaler's answer; undefined: there is no scaler.
  virtual void step(double lr, const at::Tensor& overflow) = 0;
  virtual std::vector<NamedTensor> named_tensors() = 0;
  virtual void loaded(const std::vector<NamedTensor>&) {}
};

class Optimization::AdadeltaAlgorithm : public Algorithm {
 public:
  AdadeltaAlgorithm(const Options& options, torch::nn::Module& module)
      : module_(module), adadelta_(module.parameters(), {.lr = options.lr}) {}

  std::vector<at::Tensor> gradients() override {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : module_.parameters()) {
      if (parameter.grad().defined()) all.push_back(parameter.grad());
    }
    return all;
  }

  void step(double lr, const at::Tensor& overflow) override {
    if (overflow.defined() && overflow.item<float>() != 0) return;
    adadelta_.set_lr(lr);
    adadelta_.step();
  }

  std::vector<NamedTensor> named_tensors() override {
    std::vector<NamedTensor> tensors;
    const std::vector<at::Tensor> averages = adadelta_.averages();
    std::size_t next = 0;
    for (const auto& item : module_.named_parameters()) {
      for (const char* name : {"square_average", "delta_average"}) {
        tensors.push_back({concat("adadelta.", item.key(), ".", name), averages[next++]});
      }
    }
    return tensors;
  }

 private:
  torch::nn::Module& module_;
  Adadelta adadelta_;
};

namespace {

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

// Weights decay, biases don't.
std::vector<ParameterGroup> groups_of(const Options& options, const torch::nn::Module& module) {
  std::vector<ParameterGroup> groups(2, {{}, rule_of(options)});
  std::visit([](auto& rule) { rule.weight_decay = 0; }, groups[1].rule);
  for (NamedTensor& parameter : trainable_parameters(module)) {
    groups[options.weight_decay > 0 && parameter.tensor.dim() < 2].parameters.push_back(parameter);
  }
  return groups;
}

}  // namespace

class Optimization::FlatAlgorithm : public Algorithm {
 public:
  FlatAlgorithm(const Options& options, torch::nn::Module& module, const DdpBase& ddp)
      : prefix_(to_string(options.optimizer)), flat_(groups_of(options, module), &ddp) {}

  std::vector<at::Tensor> gradients() override { return flat_.gradients(); }

  void step(double lr, const at::Tensor& overflow) override {
    flat_.set_lr(lr);
    flat_.step(overflow);
  }

  std::vector<NamedTensor> named_tensors() override {
    std::vector<NamedTensor> tensors;
    for (const NamedState& state : flat_.state()) {
      tensors.push_back({concat(prefix_, ".", state.parameter, ".", state.name), state.tensor});
    }
    return tensors;
  }

 private:
  const std::string prefix_;
  FlatOptimizer flat_;
};

class Optimization::ShardedAlgorithm : public Algorithm {
 public:
  ShardedAlgorithm(const Options& options, torch::nn::Module& module, DdpBase& ddp)
      : prefix_(concat(to_string(options.optimizer), ".")),
        sharded_(groups_of(options, module), ddp) {}

  std::vector<at::Tensor> gradients() override { return sharded_.gradients(); }
  void clip(const ClipOptions& options) override { sharded_.clip_gradient_norm(options); }

  void step(double lr, const at::Tensor& overflow) override {
    sharded_.set_lr(lr);
    sharded_.step(overflow);
  }

  std::vector<NamedTensor> named_tensors() override {
    std::vector<NamedTensor> tensors;
    for (const NamedState& state : sharded_.state()) {
      tensors.push_back({concat(prefix_, state.parameter, ".", state.name), state.tensor});
    }
    return tensors;
  }

  void loaded(const std::vector<NamedTensor>& tensors) override {
    std::vector<NamedState> state;
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with(prefix_)) continue;
      const std::size_t end = name.rfind('.');
      state.push_back({name.substr(prefix_.size(), end - prefix_.size()),
                       std::string_view(name).substr(end + 1), tensor});
    }
    sharded_.load_state(state);
  }

 private:
  const std::string prefix_;
  ShardedOptimizer sharded_;
};

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
    algorithm_ = std::make_unique<FlatAlgorithm>(options, module, ddp);
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
