// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/parallel_linear.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/layer_parts.h"
#include "worker_sdk/torch/parallel/region_function.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"

namespace ddprun {
namespace {

using torch::autograd::Function;
using torch_adapter::all_reduced;
using torch_adapter::gathered;
using torch_adapter::PendingTensor;
using torch_adapter::start_all_reduce;
using torch_adapter::start_gather;
using torch_adapter::start_sum_scatter;
using torch_adapter::sum_scattered;

using MaybeTensor = std::optional<at::Tensor>;

// Of a tensor with any number of leading dimensions: rows of its last one.
at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  return at::matmul(gradient, weight);
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  return rows_of(gradient).t().mm(rows_of(input));
}

at::Tensor bias_gradient(const at::Tensor& gradient) { return rows_of(gradient).sum(0); }

// What of the inputs gets a gradient. Arguments of apply() that are no tensors aren't counted.
struct Wanted {
  explicit Wanted(AutogradContext* context)
      : input(context->needs_input_grad(0)),
        weight(context->needs_input_grad(1)),
        bias(context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {}
  const bool input, weight, bias;
};

// The sum of the input's gradient is under way while the weight's is computed.
struct ColumnLinear : Function<ColumnLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const MaybeTensor& bias, Communicator* group,
                            bool is_sequence) {
    keep_group(context, group);
    context->saved_data["sequence"] = is_sequence;
    context->saved_data["bias"] = bias.has_value();
    context->save_for_backward({input, weight});  // of a sequence the part alone
    const at::Tensor whole = is_sequence ? gathered(input, *group) : input;
    return at::linear(whole, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    const Wanted wanted(context);
    const bool is_sequence = context->saved_data["sequence"].toBool();
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    PendingTensor whole_input, of_input;
    if (is_sequence && wanted.weight) whole_input = start_gather(saved[0], group);
    if (wanted.input) {
      const at::Tensor summand = input_gradient(gradient, saved[1]);
      of_input = is_sequence ? start_sum_scatter(summand, group) : start_all_reduce(summand, group);
    }
    at::Tensor of_weight, of_bias;
    if (wanted.bias) of_bias = bias_gradient(gradient);
    if (wanted.weight) {
      of_weight = weight_gradient(gradient, is_sequence ? whole_input.wait() : saved[0]);
    }
    return {of_input.wait(), of_weight, of_bias, {}, {}};
  }
};

struct RowLinear : Function<RowLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const MaybeTensor& bias, Communicator* group,
                            bool is_sequence) {
    keep_group(context, group);
    context->saved_data["sequence"] = is_sequence;
    context->saved_data["bias"] = bias.has_value();
    context->save_for_backward({input, weight});
    const at::Tensor summand = at::linear(input, weight);
    at::Tensor sum = is_sequence ? sum_scattered(summand, *group) : all_reduced(summand, *group);
    if (bias) sum.add_(*bias);
    return sum;
  }

  // Of a sequence each rank knows its part's share of the bias' gradient: the sum is under way
  // while the others are computed.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    const Wanted wanted(context);
    const bool is_sequence = context->saved_data["sequence"].toBool();
    const variable_list saved = context->get_saved_variables();
    PendingTensor whole, of_bias;
    if (is_sequence) whole = start_gather(gradients[0], group);
    if (wanted.bias) {
      const at::Tensor summand = bias_gradient(gradients[0]);
      of_bias =
          is_sequence ? start_all_reduce(summand, group) : PendingTensor(summand, {}, nullptr);
    }
    const at::Tensor gradient = is_sequence ? whole.wait() : gradients[0];
    at::Tensor of_input, of_weight;
    if (wanted.input) of_input = input_gradient(gradient, saved[1]);
    if (wanted.weight) of_weight = weight_gradient(gradient, saved[0]);
    return {of_input, of_weight, of_bias.wait(), {}, {}};
  }
};

template <typename Options>
void check_sizes(const Options& options, const char* layer) {
  if (options.in_features > 0 && options.out_features > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat(layer, ": in_features is ", options.in_features, ", out_features ",
                     options.out_features, ": both must be positive"));
}

void check_last(const at::Tensor& input, std::int64_t size, const char* layer) {
  if (input.dim() > 0 && input.size(-1) == size) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat(layer, ": an input of shape ", c10::str(input.sizes()),
                     ": its last dimension must be ", size));
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const ColumnParallelOptions& options,
                                                   Communicator& group)
    : options_(options), group_(group) {
  check_sizes(options, "ColumnParallelLinear");
  torch_adapter::check_shareable(options.out_features, group, "ColumnParallelLinear: out_features");
  const std::int64_t own = options.out_features / group.size();
  weight = register_parameter("weight", at::empty({own, options.in_features}));
  bias = register_parameter("bias", options.bias ? at::empty({own}) : at::Tensor(), options.bias);
  if (!options.draw) return;
  const torch::nn::Linear whole(
      torch::nn::LinearOptions(options.in_features, options.out_features).bias(options.bias));
  load_full(whole->weight, whole->bias);
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  check_last(input, options_.in_features, "ColumnParallelLinear");
  if (group_.size() == 1) return at::linear(input, weight, given(bias));
  const at::Tensor output =
      ColumnLinear::apply(in_autocast(input), in_autocast(weight), in_autocast(given(bias)),
                          &group_, options_.sequence_parallel);
  return options_.gather_output ? gather_from_region(output, group_) : output;
}

void ColumnParallelLinearImpl::load_full(const at::Tensor& full_weight,
                                         const at::Tensor& full_bias) {
  load_parts({{weight, full_weight, 0, "ColumnParallelLinear: weight"},
              {bias, full_bias, 0, "ColumnParallelLinear: bias"}},
             group_);
}

at::Tensor ColumnParallelLinearImpl::full_weight() { return full_tensor(weight, 0, group_); }

at::Tensor ColumnParallelLinearImpl::full_bias() { return full_tensor(bias, 0, group_); }

std::vector<ShardedParameter> ColumnParallelLinearImpl::sharded_parameters() const {
  std::vector<ShardedParameter> all{{"weight", weight, 0}};
  if (bias.defined()) all.push_back({"bias", bias, 0});
  return all;
}

RowParallelLinearImpl::RowParallelLinearImpl(const RowParallelOptions& options, Communicator& group)
    : options_(options), group_(group) {
  check_sizes(options, "RowParallelLinear");
  torch_adapter::check_shareable(options.in_features, group, "RowParallelLinear: in_features");
  const std::int64_t own = options.in_features / group.size();
  weight = register_parameter("weight", at::empty({options.out_features, own}));
  bias = register_parameter("bias", options.bias ? at::empty({options.out_features}) : at::Tensor(),
                            options.bias);
  if (!options.draw) return;
  const torch::nn::Linear whole(
      torch::nn::LinearOptions(options.in_features, options.out_features).bias(options.bias));
  load_full(whole->weight, whole->bias);
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor part = options_.input_is_parallel ? input : scatter_to_region(input, group_);
  check_last(part, weight.size(1), "RowParallelLinear");
  if (group_.size() == 1) return at::linear(part, weight, given(bias));
  return RowLinear::apply(in_autocast(part), in_autocast(weight), in_autocast(given(bias)), &group_,
                          options_.sequence_parallel);
}

void RowParallelLinearImpl::load_full(const at::Tensor& full_weight, const at::Tensor& full_bias) {
  load_parts({{weight, full_weight, 1, "RowParallelLinear: weight"},
              {bias, full_bias, kWhole, "RowParallelLinear: bias"}},
             group_);
}

at::Tensor RowParallelLinearImpl::full_weight() { return full_tensor(weight, 1, group_); }

at::Tensor RowParallelLinearImpl::full_bias() { return full_tensor(bias, kWhole, group_); }

std::vector<ShardedParameter> RowParallelLinearImpl::sharded_parameters() const {
  return {{"weight", weight, 1}};
}

}  // namespace ddprun
