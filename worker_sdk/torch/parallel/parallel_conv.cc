// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/parallel_conv.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>

#include <variant>

#include "common/error.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"
#include "worker_sdk/torch/tensor_collectives.h"

namespace ddprun {
namespace {

using torch::nn::Conv2dOptions;

constexpr std::int64_t kChannels = -3;  // dimension of an image's channels, in a batch or alone

at::IntArrayRef padding_of(const Conv2dOptions& options) {
  return *std::get<torch::ExpandingArray<2>>(options.padding());
}

// `shared` is the number of channels that the group shares.
void check_options(const Conv2dOptions& options, std::int64_t shared, const Communicator& group,
                   const char* what) {
  if (options.groups() != 1 ||
      !std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()) ||
      !std::holds_alternative<torch::ExpandingArray<2>>(options.padding())) {
    throw Error(ErrorCode::kUnsupported,
                "a tensor-parallel convolution has no groups and pads with zeros, by a number of "
                "rows and columns: use torch::nn::Conv2d for others");
  }
  torch_adapter::check_shareable(shared, group, what);
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, const Conv2dOptions& options) {
  return at::conv2d(input, weight, bias, *options.stride(), padding_of(options),
                    *options.dilation());
}

std::vector<std::int64_t> weight_sizes(const Conv2dOptions& options, std::int64_t out,
                                       std::int64_t in) {
  return {out, in, (*options.kernel_size())[0], (*options.kernel_size())[1]};
}

}  // namespace

ColumnParallelConv2dImpl::ColumnParallelConv2dImpl(const Conv2dOptions& options,
                                                   Communicator& group, bool gather_output)
    : ParallelLayer("ColumnParallelConv2d", 0, group),
      options_(options),
      gather_output_(gather_output) {
  check_options(options, options.out_channels(), group, "ColumnParallelConv2d: out_channels");
  const torch::nn::Conv2d whole(options);
  const std::int64_t own = options.out_channels() / group.size();
  make_parts(weight_sizes(options, own, options.in_channels()), options.bias() ? own : 0);
  load_full(whole->weight, whole->bias);
}

at::Tensor ColumnParallelConv2dImpl::forward(const at::Tensor& input) {
  const at::Tensor output = convolve(copy_to_region(input, group_), weight, given_bias(), options_);
  return gather_output_ ? gather_from_region(output, group_, kChannels) : output;
}

RowParallelConv2dImpl::RowParallelConv2dImpl(const Conv2dOptions& options, Communicator& group,
                                             bool input_is_parallel)
    : ParallelLayer("RowParallelConv2d", 1, group),
      options_(options),
      input_is_parallel_(input_is_parallel) {
  check_options(options, options.in_channels(), group, "RowParallelConv2d: in_channels");
  const torch::nn::Conv2d whole(options);
  const std::int64_t own = options.in_channels() / group.size();
  make_parts(weight_sizes(options, options.out_channels(), own),
             options.bias() ? options.out_channels() : 0);
  load_full(whole->weight, whole->bias);
}

at::Tensor RowParallelConv2dImpl::forward(const at::Tensor& input) {
  const at::Tensor part = input_is_parallel_ ? input : scatter_to_region(input, group_, kChannels);
  if (group_.size() == 1) return convolve(part, weight, given_bias(), options_);
  const at::Tensor sum = reduce_from_region(convolve(part, weight, std::nullopt, options_), group_);
  return bias.defined() ? sum + bias.to(sum.scalar_type()).view({-1, 1, 1}) : sum;
}

}  // namespace ddprun
