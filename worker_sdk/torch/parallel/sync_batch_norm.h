// SPDX-License-Identifier: Apache-2.0
// Batch normalisation (Ioffe and Szegedy, 2015) over the batches of all ranks of a group, as
// torch.nn.SyncBatchNorm (docs/ddp.md). It is for batches so small that statistics of one rank are
// too noisy.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// Replaces torch::nn::BatchNorm1d, 2d or 3d. Parameters and buffers have the same names, so each
// can load the other's checkpoints.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  // `group` outlives this and its graphs. Not collective.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator& group);

  // `input` is {batch, channels, …} of float32, float64, float16 or bfloat16; the batch may be
  // empty, but not on all ranks. In training it is collective, as is its backward: mean and
  // variance are those of all ranks' batches. In evaluation it isn't collective and works as
  // BatchNorm. There are no second derivatives. Error(kInvalidArgument): another shape; also the
  // communicator's errors.
  at::Tensor forward(const at::Tensor& input);

  const torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // undefined if not affine
  at::Tensor running_mean, running_var, num_batches_tracked;  // undefined if not tracked

 private:
  at::Tensor normalised_by_all(const at::Tensor& input);

  Communicator& group_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace ddprun
