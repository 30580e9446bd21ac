// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/sync_batch_norm.h"

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "common/throw_error.h"
#include "worker_sdk/torch/parallel/region_function.h"
#include "worker_sdk/torch/tensor_collectives.h"

namespace ddprun {
namespace {

using torch::autograd::Function;
using MaybeTensor = std::optional<at::Tensor>;

// float16 and bfloat16 get statistics in float32, as in BatchNorm.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// Returns all dimensions except the channels'.
std::vector<std::int64_t> dims_of(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// Returns one number per channel, in the shape that fits `input`.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = input.size(1);
  return values.view(sizes);
}

struct Statistics {
  at::Tensor mean, squares;  // by channel: the mean, and the sum of squared distances to it
  at::Tensor count;          // one element: numbers per channel, over all ranks
};

// Merges each rank's statistics (Chan, Golub and LeVeque, 1979), which avoids differences of large
// sums.
Statistics statistics_of_all(const at::Tensor& wide, Communicator& group) {
  const std::int64_t channels = wide.size(1);
  at::Tensor mean = at::zeros({channels}, wide.options()), squares = mean;
  if (wide.numel() > 0) {
    mean = wide.mean(dims_of(wide));
    squares = (wide - by_channel(mean, wide)).square().sum(dims_of(wide));
  }
  const double count = static_cast<double>(wide.numel()) / static_cast<double>(channels);
  const at::Tensor own = at::cat({mean, squares, at::full({1}, count, wide.options())});
  const at::Tensor all = torch_adapter::gathered(own.unsqueeze(0), group);
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum();
  const at::Tensor merged = (means * counts).sum(0) / total;
  const at::Tensor between = ((means - merged).square() * counts).sum(0);
  return {merged, all.narrow(1, channels, channels).sum(0) + between, total};
}

struct NormaliseByAll : Function<NormaliseByAll> {
  // Returns the output, then mean, squares and count for the running statistics.
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const MaybeTensor& weight, const MaybeTensor& bias,
                               Communicator* group, double epsilon) {
    keep_group(context, group);
    const at::Tensor wide = widened(input);
    const Statistics all = statistics_of_all(wide, *group);
    const at::Tensor scale = (all.squares / all.count + epsilon).rsqrt();
    at::Tensor output = (wide - by_channel(all.mean, wide)) * by_channel(scale, wide);
    if (weight) {
      output = output * by_channel(widened(*weight), wide) + by_channel(widened(*bias), wide);
    }
    context->save_for_backward({input, weight.value_or(at::Tensor()), all.mean, scale, all.count});
    context->mark_non_differentiable({all.mean, all.squares, all.count});
    return {output.to(input.scalar_type()), all.mean, all.squares, all.count};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Communicator& group = kept_group(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &scale = saved[3], &count = saved[4];
    const at::Tensor wide = widened(input), gradient = widened(gradients[0]);
    const at::Tensor normal = (wide - by_channel(saved[2], wide)) * by_channel(scale, wide);
    const at::Tensor sum = gradient.sum(dims_of(wide));
    const at::Tensor product = (gradient * normal).sum(dims_of(wide));
    // The means over all ranks of the gradient's components along 1 and along the normalised input.
    const at::Tensor means = torch_adapter::all_reduced(at::stack({sum, product}), group) / count;
    at::Tensor factor = scale;
    if (weight.defined()) factor = factor * widened(weight);
    const at::Tensor of_input =
        (gradient - by_channel(means[0], wide) - normal * by_channel(means[1], wide)) *
        by_channel(factor, wide);
    variable_list result(5);
    result[0] = of_input.to(input.scalar_type());
    if (!weight.defined()) return result;
    result[1] = product.to(weight.scalar_type());
    result[2] = sum.to(weight.scalar_type());
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& wanted, Communicator& group)
    : options(wanted), group_(group) {
  const std::int64_t channels = options.num_features();
  if (options.affine()) {
    weight = register_parameter("weight", at::ones({channels}));
    bias = register_parameter("bias", at::zeros({channels}));
  }
  if (!options.track_running_stats()) return;
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw_invalid("SyncBatchNorm of ", options.num_features(),
                  " channels: the input has the shape ", c10::str(input.sizes()),
                  "; it must be {batch, channels, …}");
  }
  if (is_training() && group_.size() > 1) return normalised_by_all(input);
  double momentum = options.momentum().value_or(0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var,
                        is_training() || !running_mean.defined(), momentum, options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor SyncBatchNormImpl::normalised_by_all(const at::Tensor& input) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
  };
  const variable_list results =
      NormaliseByAll::apply(input, given(weight), given(bias), &group_, options.eps());
  if (!num_batches_tracked.defined()) return results[0];
  const at::NoGradGuard no_grad;
  num_batches_tracked += 1;
  const at::Tensor momentum = options.momentum()
                                  ? at::full({}, *options.momentum(), running_mean.options())
                                  : num_batches_tracked.to(running_mean.scalar_type()).reciprocal();
  const at::Tensor &mean = results[1], &squares = results[2], &count = results[3];
  running_mean.add_((mean - running_mean) * momentum);
  running_var.add_((squares / (count - 1) - running_var) * momentum);  // unbiased, as in BatchNorm
  return results[0];
}

}  // namespace ddprun
