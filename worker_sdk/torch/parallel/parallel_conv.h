// SPDX-License-Identifier: Apache-2.0
// torch::nn::Conv2d, shared by the ranks of a group: by output channels, or by input channels. In
// all else its layers are as those of parallel_linear.h.
#pragma once

#include <torch/nn/options/conv.h>

#include "worker_sdk/torch/parallel/parallel_linear.h"

namespace ddprun {

// Its output is this rank's part of the channels, or with `gather_output` all of them.
class ColumnParallelConv2dImpl : public ParallelLayer {
 public:
  // `options` are the whole layer's. Not collective. Error(kInvalidArgument): channels that the
  // group can't share evenly. Error(kUnsupported): `groups`, or padding other than zeros in a
  // number of rows and columns.
  ColumnParallelConv2dImpl(const torch::nn::Conv2dOptions& options, Communicator& group,
                           bool gather_output = false);

  at::Tensor forward(const at::Tensor& input);

 private:
  const torch::nn::Conv2dOptions options_;
  const bool gather_output_;
};
TORCH_MODULE(ColumnParallelConv2d);

// Its input is this rank's part of the channels, or all of them if not `input_is_parallel`. Every
// rank has the whole bias, which is added once, after the sum.
class RowParallelConv2dImpl : public ParallelLayer {
 public:
  RowParallelConv2dImpl(const torch::nn::Conv2dOptions& options, Communicator& group,
                        bool input_is_parallel = true);

  at::Tensor forward(const at::Tensor& input);

 private:
  const torch::nn::Conv2dOptions options_;
  const bool input_is_parallel_;
};
TORCH_MODULE(RowParallelConv2d);

}  // namespace ddprun
