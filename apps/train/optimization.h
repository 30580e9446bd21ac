// SPDX-License-Identifier: Apache-2.0
// `train`'s use of the averaged gradients: the optimiser that the user chose, its learning rate at
// each step, clipping, mixed precision. Includes no torch header.
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

  // The references outlive this object. `device` is the module's. `steps_per_epoch` gives the
  // cosine's length.
  Optimization(const Options& options, torch::nn::Module& module, DdpBase& ddp,
               Communicator& communicator, c10::Device device, std::uint64_t steps_per_epoch);
  ~Optimization();

  // Returns the Autocast for forward and loss.
  Autocast autocast() const;

  // Returns the tensor to call backward() on.
  at::Tensor scaled(const at::Tensor& loss) const;

  // Does one update after a backward, or none after an overflow. `step` updates and `epoch` whole
  // epochs were done before.
  void step(std::uint64_t step, int epoch);

  // Returns all tensors that a checkpoint needs. step() changes them, so call it anew for each
  // checkpoint. With --zero it is collective and returns copies; loaded() takes values written into
  // them.
  std::vector<NamedTensor> named_tensors();
  void loaded(const std::vector<NamedTensor>& tensors);

  double lr_at(std::uint64_t step, int epoch) const;

 private:
  const Options& options_;
  const c10::Device device_;
  const std::uint64_t steps_per_epoch_;
  std::unique_ptr<Algorithm> algorithm_;
  std::optional<GradScaler> scaler_;  // fp16 only
};

}  // namespace ddprun::train
