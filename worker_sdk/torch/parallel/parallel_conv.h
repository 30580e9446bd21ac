// SPDX-License-Identifier: Apache-2.0
// torch::nn::Conv2d, shared by the ranks of a group: by output channels, or by input channels. As
// parallel_linear.h's layers in all that isn't said here.
#pragma once

#include <torch/nn/options/conv.h>

#include "worker_sdk/torch/parallel/parallel_linear.h"

namespace ddprun {

// Output: this rank's part of the channels, or with `gather_output` all of them.
class ColumnParallelConv2dImpl : public ParallelLayer {
 public:
  // `options` are the whole layer's. Not collective. Error(kInvalidArgument): channels that the
  // group can't share evenly. Error(kUnsupported): groups, or padding other than with zeros by a
  // number of rows and columns.
  ColumnParallelConv2dImpl(const torch::nn::Conv2dOptions& options, Communicator& group,
                           bool gather_output = false);

  at::Tensor forward(const at::Tensor& input);

 private:
  const torch::nn::Conv2dOptions options_;
  const bool gather_output_;
};
TORCH_MODULE(ColumnParallelConv2d);

// Input: this rank's part of the channels, or all of them where it isn't `input_is_parallel`. Bias:
// whole, added once, after the sum.
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
