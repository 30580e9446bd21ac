// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/parallel_conv.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>

#include <variant>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/layer_parts.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"

namespace ddprun {
namespace {

using torch::nn::Conv2dOptions;

constexpr std::int64_t kChannels = -3;  // of an image, in a batch or alone

at::IntArrayRef padding_of(const Conv2dOptions& options) {
  return *std::get<torch::ExpandingArray<2>>(options.padding());
}

// `shared`: the channels that the group shares.
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
    : options_(options), group_(group), gather_output_(gather_output) {
  check_options(options, options.out_channels(), group, "ColumnParallelConv2d: out_channels");
  const torch::nn::Conv2d whole(options);
  const std::int64_t own = options.out_channels() / group.size();
  weight =
      register_parameter("weight", at::empty(weight_sizes(options, own, options.in_channels())));
  bias =
      register_parameter("bias", options.bias() ? at::empty({own}) : at::Tensor(), options.bias());
  load_full(whole->weight, whole->bias);
}

at::Tensor ColumnParallelConv2dImpl::forward(const at::Tensor& input) {
  const at::Tensor output = convolve(copy_to_region(input, group_), weight, given(bias), options_);
  return gather_output_ ? gather_from_region(output, group_, kChannels) : output;
}

void ColumnParallelConv2dImpl::load_full(const at::Tensor& full_weight,
                                         const at::Tensor& full_bias) {
  load_parts({{weight, full_weight, 0, "ColumnParallelConv2d: weight"},
              {bias, full_bias, 0, "ColumnParallelConv2d: bias"}},
             group_);
}

at::Tensor ColumnParallelConv2dImpl::full_weight() { return full_tensor(weight, 0, group_); }

at::Tensor ColumnParallelConv2dImpl::full_bias() { return full_tensor(bias, 0, group_); }

std::vector<ShardedParameter> ColumnParallelConv2dImpl::sharded_parameters() const {
  std::vector<ShardedParameter> all{{"weight", weight, 0}};
  if (bias.defined()) all.push_back({"bias", bias, 0});
  return all;
}

RowParallelConv2dImpl::RowParallelConv2dImpl(const Conv2dOptions& options, Communicator& group,
                                             bool input_is_parallel)
    : options_(options), group_(group), input_is_parallel_(input_is_parallel) {
  check_options(options, options.in_channels(), group, "RowParallelConv2d: in_channels");
  const torch::nn::Conv2d whole(options);
  const std::int64_t own = options.in_channels() / group.size();
  weight =
      register_parameter("weight", at::empty(weight_sizes(options, options.out_channels(), own)));
  bias = register_parameter(
      "bias", options.bias() ? at::empty({options.out_channels()}) : at::Tensor(), options.bias());
  load_full(whole->weight, whole->bias);
}

at::Tensor RowParallelConv2dImpl::forward(const at::Tensor& input) {
  const at::Tensor part = input_is_parallel_ ? input : scatter_to_region(input, group_, kChannels);
  if (group_.size() == 1) return convolve(part, weight, given(bias), options_);
  const at::Tensor sum = reduce_from_region(convolve(part, weight, std::nullopt, options_), group_);
  return bias.defined() ? sum + bias.to(sum.scalar_type()).view({-1, 1, 1}) : sum;
}

void RowParallelConv2dImpl::load_full(const at::Tensor& full_weight, const at::Tensor& full_bias) {
  load_parts({{weight, full_weight, 1, "RowParallelConv2d: weight"},
              {bias, full_bias, kWhole, "RowParallelConv2d: bias"}},
             group_);
}

at::Tensor RowParallelConv2dImpl::full_weight() { return full_tensor(weight, 1, group_); }

at::Tensor RowParallelConv2dImpl::full_bias() { return full_tensor(bias, kWhole, group_); }

std::vector<ShardedParameter> RowParallelConv2dImpl::sharded_parameters() const {
  return {{"weight", weight, 1}};
}

}  // namespace ddprun
