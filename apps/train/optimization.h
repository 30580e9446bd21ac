// SPDX-License-Identifier: Apache-2.0
// `train`'s use of the averaged gradients: the optimiser that the user chose, its learning rate at
// each step, clipping, mixed precision. No torch header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/train/options.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/autocast.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/grad_scaler.h"

namespace torch::nn {
class Module;
}
namespace ddprun {
class DdpBase;
}

namespace ddprun::train {

class Optimization {
 public:
  class Algorithm;

  // The references outlive this object. `device`: the module's. `steps_per_epoch`: for the cosine's
  // length.
  Optimization(const Options& options, torch::nn::Module& module, DdpBase& ddp,
               Communicator& communicator, c10::Device device, std::uint64_t steps_per_epoch);
  ~Optimization();

  // The scope of forward and loss.
  Autocast autocast() const;

  // The tensor to call backward() on.
  at::Tensor scaled(const at::Tensor& loss) const;

  // One update after a backward, or none after an overflow: `step` of them were done before,
  // `epoch` whole epochs.
  void step(std::uint64_t step, int epoch);

  // All that a checkpoint needs of it, changed in place by step(): ask anew for each. With --zero
  // collective, and copies: loaded() takes what was written into them.
  std::vector<NamedTensor> named_tensors();
  void loaded(const std::vector<NamedTensor>& tensors);

  // The learning rate of that step.
  double lr_at(std::uint64_t step, int epoch) const;

 private:
  const Options& options_;
  const c10::Device device_;
  const std::uint64_t steps_per_epoch_;
  std::unique_ptr<Algorithm> algorithm_;
  std::optional<GradScaler> scaler_;  // fp16 only
};

}  // namespace ddprun::train
