// SPDX-License-Identifier: Apache-2.0
// What `train` does with the averaged gradients: the optimiser that the user chose, its learning
// rate at each step, clipping. No torch header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/train/options.h"
#include "worker_sdk/torch/checkpoint.h"

namespace torch::nn {
class Module;
}
namespace ddprun {
class DdpBase;
}

namespace ddprun::train {

class Optimization {
 public:
  // `options`, `module` and `ddp` outlive this object. `steps_per_epoch`: for the cosine's length.
  Optimization(const Options& options, torch::nn::Module& module, const DdpBase& ddp,
               std::uint64_t steps_per_epoch);
  ~Optimization();

  // One update after a backward: `step` of them were done before, `epoch` whole epochs.
  void step(std::uint64_t step, int epoch);

  // All that a checkpoint needs of it, changed in place by step(): ask anew for each.
  std::vector<NamedTensor> named_tensors();

  // The learning rate of that step.
  double lr_at(std::uint64_t step, int epoch) const;

 private:
  class Algorithm;
  class AdadeltaAlgorithm;
  class FlatAlgorithm;

  const Options& options_;
  const std::uint64_t steps_per_epoch_;
  std::unique_ptr<Algorithm> algorithm_;
};

}  // namespace ddprun::train
