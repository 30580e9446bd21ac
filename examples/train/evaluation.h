// SPDX-License-Identifier: Apache-2.0
// How good the model is on a set of images, all ranks together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "examples/train/images.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::train {

// Sums over samples, on the device: nothing is waited for until they are asked for.
class Totals {
 public:
  explicit Totals(c10::Device device);

  // Of `count` samples: the mean, a scalar on the device.
  void add_mean_loss(const at::Tensor& mean, std::int64_t count);
  void add_loss(double sum);
  void add_correct(const at::Tensor& count);
  void add_samples(std::int64_t count);

  // This process' become those of all ranks. Collective.
  void sum_over_ranks(Communicator& communicator);
  Totals copy() const;

  double loss_sum() const;
  double loss() const { return loss_sum() / samples(); }
  double accuracy() const;
  double samples() const;

 private:
  at::Tensor values_;  // loss, correct, samples: doubles
};

// N × 1 × 28 × 28 images → N × 10 log-probabilities.
using Forward = std::function<at::Tensor(const at::Tensor& images)>;

// Every image counts once, whatever the number of ranks. Collective.
Totals evaluate(const Forward& forward, const Images& images, Communicator& communicator);

}  // namespace ddprun::train
