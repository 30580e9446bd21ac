// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/parallel_linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/parallel/region_function.h"
#include "worker_sdk/torch/parallel/tensor_parallel.h"
#include "worker_sdk/torch/tensor_collectives.h"

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

// Returns the rows along the last dimension of a tensor with any number of leading ones.
at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  return at::matmul(gradient, weight);
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  return rows_of(gradient).t().mm(rows_of(input));
}

at::Tensor bias_gradient(const at::Tensor& gradient) { return rows_of(gradient).sum(0); }

// Which inputs get a gradient. Arguments of apply() that are no tensors aren't counted.
struct Wanted {
  explicit Wanted(AutogradContext* context)
      : input(context->needs_input_grad(0)),
        weight(context->needs_input_grad(1)),
        bias(context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {}
  const bool input, weight, bias;
};

// The input's gradient is summed while the weight's is computed.
struct ColumnLinear : Function<ColumnLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const MaybeTensor& bias, Communicator* group,
                            bool is_sequence) {
    keep_group(context, group);
    context->saved_data["sequence"] = is_sequence;
    context->saved_data["bias"] = bias.has_value();
    context->save_for_backward({input, weight});  // of a sequence only the part is saved
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

  // With a sequence each rank knows only its part's share of the bias' gradient. It is summed while
  // the other gradients are computed.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    const Wanted wanted(context);
    const bool is_sequence = context->saved_data["sequence"].toBool();
    const variable_list saved = context->get_saved_variables();
    PendingTensor whole, of_bias;
    if (is_sequence) whole = start_gather(gradients[0], group);
    if (wanted.bias) {
      const at::Tensor summand = bias_gradient(gradients[0]);
      of_bias = is_sequence ? start_all_reduce(summand, group) : PendingTensor(summand);
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
  throw_invalid(layer, ": in_features is ", options.in_features, ", out_features ",
                options.out_features, ": both must be positive");
}

void check_last(const at::Tensor& input, std::int64_t size, const char* layer) {
  if (input.dim() > 0 && input.size(-1) == size) return;
  throw_invalid(layer, ": an input of shape ", c10::str(input.sizes()),
                ": its last dimension must be ", size);
}

// Casts a tensor as autocast would for a matmul, within the graph. An autograd function sees its
// tensors before and after, so they must be of one type.
at::Tensor in_autocast(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

std::optional<at::Tensor> in_autocast(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(in_autocast(*tensor)) : std::nullopt;
}

constexpr std::int64_t kWhole = -1;  // in place of a dimension: each rank has all of it

struct PartOfWhole {
  at::Tensor part;  // undefined: the layer has none, and `whole` must be undefined, too
  at::Tensor whole;
  std::int64_t dim;
  std::string what;  // its name in messages
};

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.sizes()) : "none";
}

void check_shape(const PartOfWhole& each, const Communicator& group) {
  std::string wanted = "none";
  if (each.part.defined()) {
    std::vector<std::int64_t> sizes = each.part.sizes().vec();
    if (each.dim != kWhole) sizes.at(static_cast<std::size_t>(each.dim)) *= group.size();
    wanted = c10::str(at::IntArrayRef(sizes));
  }
  if (shape_text(each.whole) == wanted) return;
  throw_invalid(each.what, " is given as ", shape_text(each.whole), ": the whole layer's is ",
                wanted);
}

// Returns a copy of the whole parameter; undefined if `part` is.
at::Tensor full_tensor(const at::Tensor& part, std::int64_t dim, Communicator& group) {
  if (!part.defined()) return {};
  const c10::NoGradGuard no_grad;
  if (dim == kWhole || group.size() == 1) return part.detach().clone();
  return torch_adapter::gather(part.detach(), dim, group);
}

template <typename Layer, typename Options>
void draw(Layer& layer, const Options& options) {
  if (!options.draw) return;
  const torch::nn::Linear whole(
      torch::nn::LinearOptions(options.in_features, options.out_features).bias(options.bias));
  layer.load_full(whole->weight, whole->bias);
}

}  // namespace

void ParallelLayer::make_parts(at::IntArrayRef weight_sizes, std::int64_t bias_size) {
  weight = register_parameter("weight", at::empty(weight_sizes));
  bias = register_parameter("bias", bias_size > 0 ? at::empty({bias_size}) : at::Tensor(),
                            bias_size > 0);
}

std::optional<at::Tensor> ParallelLayer::given_bias() const {
  return bias.defined() ? std::optional(bias) : std::nullopt;
}

void ParallelLayer::load_full(const at::Tensor& full_weight, const at::Tensor& full_bias) {
  const c10::NoGradGuard no_grad;
  const PartOfWhole parts[] = {
      {weight, full_weight, shared_dim_, concat(kind_, ": weight")},
      {bias, full_bias, shared_dim_ == 0 ? 0 : kWhole, concat(kind_, ": bias")}};
  for (const PartOfWhole& each : parts) check_shape(each, group_);
  for (const PartOfWhole& each : parts) {
    if (!each.part.defined()) continue;
    each.part.copy_(each.dim == kWhole
                        ? each.whole
                        : torch_adapter::own_part(each.whole, each.dim, group_, each.what.c_str()));
  }
}

at::Tensor ParallelLayer::full_weight() { return full_tensor(weight, shared_dim_, group_); }

at::Tensor ParallelLayer::full_bias() {
  return full_tensor(bias, shared_dim_ == 0 ? 0 : kWhole, group_);
}

std::vector<ShardedParameter> ParallelLayer::sharded_parameters() const {
  std::vector<ShardedParameter> all{{"weight", weight, shared_dim_}};
  if (bias.defined() && shared_dim_ == 0) all.push_back({"bias", bias, 0});
  return all;
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const ColumnParallelOptions& options,
                                                   Communicator& group)
    : ParallelLayer("ColumnParallelLinear", 0, group), options_(options) {
  check_sizes(options, "ColumnParallelLinear");
  torch_adapter::check_shareable(options.out_features, group, "ColumnParallelLinear: out_features");
  const std::int64_t own = options.out_features / group.size();
  make_parts({own, options.in_features}, options.bias ? own : 0);
  draw(*this, options);
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  check_last(input, options_.in_features, "ColumnParallelLinear");
  if (group_.size() == 1) return at::linear(input, weight, given_bias());
  const at::Tensor output =
      ColumnLinear::apply(in_autocast(input), in_autocast(weight), in_autocast(given_bias()),
                          &group_, options_.sequence_parallel);
  return options_.gather_output ? gather_from_region(output, group_) : output;
}

RowParallelLinearImpl::RowParallelLinearImpl(const RowParallelOptions& options, Communicator& group)
    : ParallelLayer("RowParallelLinear", 1, group), options_(options) {
  check_sizes(options, "RowParallelLinear");
  torch_adapter::check_shareable(options.in_features, group, "RowParallelLinear: in_features");
  make_parts({options.out_features, options.in_features / group.size()},
             options.bias ? options.out_features : 0);
  draw(*this, options);
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor part = options_.input_is_parallel ? input : scatter_to_region(input, group_);
  check_last(part, weight.size(1), "RowParallelLinear");
  if (group_.size() == 1) return at::linear(part, weight, given_bias());
  return RowLinear::apply(in_autocast(part), in_autocast(weight), in_autocast(given_bias()),
                          &group_, options_.sequence_parallel);
}

}  // namespace ddprun
