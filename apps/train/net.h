// SPDX-License-Identifier: Apache-2.0
// The net that `train` trains. Heavy: includes LibTorch's modules; only the .cc files of the models
// include it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "worker_sdk/torch/autocast.h"

namespace ddprun::train {

// Dropout rates: before the first linear layer, and between the two.
inline constexpr double kDroppedFeatures = 0.25, kDroppedHidden = 0.5;

// The net of PyTorch's MNIST example: two 3×3 convolutions, 2×2 max-pool, two linear layers.
struct NetImpl : torch::nn::Module {
  // `batch_norm` adds a batch norm after each convolution, before its relu.
  explicit NetImpl(bool batch_norm = false) {
    if (!batch_norm) return;
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(32));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(64));
  }

  // Maps N × 1 × 28 × 28 images to N × 10 log-probabilities.
  torch::Tensor forward(torch::Tensor x) {
    x = features(x);
    x = drop(x, dropout1).flatten(1);
    x = drop(fc1(x).relu_(), dropout2);
    return torch::log_softmax(fc2(x).to(torch::kFloat), 1);  // float32, in mixed precision, too
  }

  // Does the same as the layer, bit for bit; on the CPU it uses this net's own random numbers.
  torch::Tensor drop(const torch::Tensor& x, torch::nn::Dropout& layer) {
    if (!is_training() || !x.is_cpu()) return layer(x);
    const double keep = 1 - layer->options.p();
    return x * at::empty_like(x).bernoulli_(keep, generator).div_(keep);
  }

  torch::Tensor features(torch::Tensor x) {
    std::optional<Autocast> off;
    if (float32_convolutions) off.emplace(torch::kCPU, torch::kHalf, false);
    x = conv1(x);
    if (norm1) x = norm1(x);
    x = conv2(x.relu_());
    if (norm2) x = norm2(x);
    // The reference applies relu before the pool. The values are the same, for relu is monotonic.
    // After the pool it has a quarter of the elements.
    return torch::max_pool2d(x, 2).relu_();
  }

  // Generates the numbers for dropout on the CPU. LibTorch has one generator per process, but
  // several nets may train in it.
  at::Generator generator = at::detail::createCPUGenerator();

  // True within an Autocast on the CPU to float16, whose convolutions LibTorch differentiates
  // slowly.
  bool float32_convolutions = false;

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 32, 3));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(32, 64, 3));
  torch::nn::Dropout dropout1 = register_module("dropout1", torch::nn::Dropout(kDroppedFeatures));
  torch::nn::Dropout dropout2 = register_module("dropout2", torch::nn::Dropout(kDroppedHidden));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(9216, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};  // null: no batch norm
};
TORCH_MODULE(Net);

}  // namespace ddprun::train
