// SPDX-License-Identifier: Apache-2.0
#include "examples/train/whole_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <utility>

#include "common/check.h"
#include "worker_sdk/torch/parallel/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

// What a tensor of a checkpoint is of its parameter: "sgd." and ".momentum_buffer" around the
// parameter's name; both empty: the parameter itself.
struct Kind {
  std::string before, after;
  bool has_shape = true;  // the parameter's; else it is one number
  at::ScalarType dtype = at::kFloat;

  std::string name_of(const PlacedParameter& parameter) const {
    return before + parameter.name + after;
  }
};

// Of the first parameter that has a part here; every stage has one.
std::vector<Kind> kinds_of(const std::vector<PlacedParameter>& parameters,
                           const std::vector<NamedTensor>& parts) {
  std::vector<Kind> kinds;
  for (const PlacedParameter& parameter : parameters) {
    for (const NamedTensor& part : parts) {
      const std::size_t at = part.name.find(parameter.name);
      if (at == part.name.npos) continue;
      kinds.push_back({.before = part.name.substr(0, at),
                       .after = part.name.substr(at + parameter.name.size()),
                       .has_shape = part.tensor.dim() > 0,
                       .dtype = part.tensor.scalar_type()});
    }
    if (!kinds.empty()) return kinds;
  }
  DDPRUN_CHECK(false);  // each stage has a layer, and each layer a parameter
  return kinds;
}

}  // namespace

WholeTensors::WholeTensors(std::vector<PlacedParameter> parameters, Mesh& mesh, c10::Device device)
    : parameters_(std::move(parameters)), mesh_(mesh), device_(device) {}

std::vector<NamedTensor> WholeTensors::make(const std::vector<NamedTensor>& parts) const {
  std::vector<NamedTensor> whole;
  for (const Kind& kind : kinds_of(parameters_, parts)) {
    for (const PlacedParameter& parameter : parameters_) {
      const auto shape = kind.has_shape ? parameter.shape : std::vector<std::int64_t>{};
      const c10::Device device = kind.has_shape ? device_ : c10::Device(c10::kCPU);
      whole.push_back(
          {kind.name_of(parameter), at::zeros(shape, at::device(device).dtype(kind.dtype))});
    }
  }
  return whole;
}

at::Tensor WholeTensors::own_part(const at::Tensor& whole, const PlacedParameter& parameter) const {
  if (whole.dim() == 0 || parameter.tensor_dim < 0) return whole;
  return torch_adapter::own_part(whole, parameter.tensor_dim, mesh_.along(kTensorAxis),
                                 parameter.name.c_str());
}

void WholeTensors::scatter(const std::vector<NamedTensor>& whole,
                           const std::vector<NamedTensor>& parts) const {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& each : whole) by_name[each.name] = each.tensor;
  for (const NamedTensor& part : parts) {
    for (const PlacedParameter& parameter : parameters_) {
      if (part.name.find(parameter.name) == part.name.npos) continue;
      at::Tensor target = part.tensor;
      target.copy_(own_part(by_name.at(part.name), parameter));
    }
  }
}

std::vector<NamedTensor> WholeTensors::gather(const std::vector<NamedTensor>& parts) const {
  const c10::NoGradGuard no_grad;
  Communicator& tensor_ranks = mesh_.along(kTensorAxis);
  std::map<std::string, at::Tensor> own;
  for (const NamedTensor& part : parts) own[part.name] = part.tensor;
  std::vector<NamedTensor> whole = make(parts);
  std::map<int, std::vector<at::Tensor>> by_stage;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const PlacedParameter& parameter = parameters_[i % parameters_.size()];
    const auto part = own.find(whole[i].name);  // none: another stage's
    if (part != own.end()) {
      const bool is_shared = whole[i].tensor.dim() > 0 && parameter.tensor_dim >= 0;
      whole[i].tensor.copy_(
          is_shared && tensor_ranks.size() > 1
              ? torch_adapter::gather(part->second, parameter.tensor_dim, tensor_ranks)
              : part->second);
    }
    by_stage[parameter.stage].push_back(whole[i].tensor);
  }
  Communicator& stages = mesh_.along(kPipelineAxis);
  if (stages.size() == 1) return whole;
  for (auto& [stage, tensors] : by_stage) {
    torch_adapter::broadcast_tensors(tensors, stage, stages, device_);
  }
  return whole;
}

}  // namespace ddprun::train
