// SPDX-License-Identifier: Apache-2.0
#include "examples/train/parallel_net.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"

namespace ddprun::train {
namespace {

torch::nn::Conv2d copy_of(const torch::nn::Conv2d& whole) {
  const auto& size = whole->options;
  torch::nn::Conv2d layer(
      torch::nn::Conv2dOptions(size.in_channels(), size.out_channels(), size.kernel_size()));
  const c10::NoGradGuard no_grad;
  layer->weight.copy_(whole->weight);
  layer->bias.copy_(whole->bias);
  return layer;
}

}  // namespace

const std::vector<std::string>& layer_names() {
  static const std::vector<std::string> names{"conv1", "conv2", "fc1", "fc2"};
  return names;
}

int stage_of(const std::string& layer, int num_stages) {
  const std::vector<std::string>& names = layer_names();
  const int num_layers = static_cast<int>(names.size());
  if (num_stages > num_layers) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("--parallel: the net has ", num_layers, " layers, too few for ", num_stages,
                       " pipeline stages"));
  }
  const auto index = std::find(names.begin(), names.end(), layer) - names.begin();
  return static_cast<int>(index) * num_stages / num_layers;
}

ParallelNetImpl::ParallelNetImpl(NetImpl& whole, Mesh& mesh)
    : tensor_ranks_(mesh.along(kTensorAxis)) {
  const int stage = mesh.coordinate(kPipelineAxis), num_stages = mesh.size_of(kPipelineAxis);
  const auto is_here = [&](const char* layer) { return stage_of(layer, num_stages) == stage; };
  if (is_here("conv1")) conv1 = register_module("conv1", copy_of(whole.conv1));
  if (is_here("conv2")) conv2 = register_module("conv2", copy_of(whole.conv2));
  if (is_here("fc1")) {
    const auto& size = whole.fc1->options;
    const ColumnParallelOptions its{
        .in_features = size.in_features(), .out_features = size.out_features(), .draw = false};
    fc1 = register_module("fc1", ColumnParallelLinear(its, tensor_ranks_));
    fc1->load_full(whole.fc1->weight, whole.fc1->bias);
  }
  if (is_here("fc2")) {
    const auto& size = whole.fc2->options;
    const RowParallelOptions its{
        .in_features = size.in_features(), .out_features = size.out_features(), .draw = false};
    fc2 = register_module("fc2", RowParallelLinear(its, tensor_ranks_));
    fc2->load_full(whole.fc2->weight, whole.fc2->bias);
  }
}

torch::Tensor ParallelNetImpl::forward(torch::Tensor x, const DropoutMasks* masks) {
  if (conv1) x = conv1(x).relu_();
  if (conv2) x = torch::max_pool2d(conv2(x), 2).relu_();
  if (fc1) {
    if (masks) x = x * masks->features;
    x = fc1(x.flatten(1)).relu_();
  }
  if (fc2) {
    if (masks) x = x * torch_adapter::own_part(masks->hidden, 1, tensor_ranks_, "hidden features");
    x = torch::log_softmax(fc2(x), 1);
  }
  return x;
}

}  // namespace ddprun::train
