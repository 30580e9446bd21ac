// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/parallel/sharded_layer.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <map>
#include <set>

#include "common/throw_error.h"
#include "worker_sdk/torch/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

// Returns parameters and buffers by name, each once.
std::vector<NamedTensor> tensors_of(const torch::nn::Module& model) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : model.named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : model.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

using Dims = std::map<const c10::TensorImpl*, std::int64_t>;

Dims sharded_dims(const torch::nn::Module& model) {
  Dims dims;
  for (const ShardedParameter& each : sharded_parameters(model)) {
    dims[each.tensor.unsafeGetTensorImpl()] = each.dim;
  }
  return dims;
}

}  // namespace

std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model) {
  std::vector<ShardedParameter> all;
  std::set<const c10::TensorImpl*> seen;  // a layer may be in the model twice
  const auto add = [&](const std::string& prefix, const torch::nn::Module& module) {
    const auto* layer = dynamic_cast<const ShardedLayer*>(&module);
    if (!layer) return;
    for (ShardedParameter& each : layer->sharded_parameters()) {
      if (!seen.insert(each.tensor.unsafeGetTensorImpl()).second) continue;
      all.push_back({prefix + each.name, each.tensor, each.dim});
    }
  };
  add("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    add(item.key() + ".", *item.value());
  }
  return all;
}

void broadcast_replicated(torch::nn::Module& model, Communicator& group) {
  const Dims sharded = sharded_dims(model);
  std::vector<at::Tensor> replicated;
  for (const NamedTensor& each : tensors_of(model)) {
    if (!sharded.contains(each.tensor.unsafeGetTensorImpl())) replicated.push_back(each.tensor);
  }
  if (replicated.empty()) return;
  torch_adapter::broadcast_tensors(replicated, 0, group, replicated.front().device());
}

std::vector<NamedTensor> full_tensors(const torch::nn::Module& model, Communicator& group) {
  const c10::NoGradGuard no_grad;
  std::vector<NamedTensor> tensors = tensors_of(model);
  if (group.size() == 1) return tensors;
  const Dims sharded = sharded_dims(model);
  for (NamedTensor& each : tensors) {
    const auto found = sharded.find(each.tensor.unsafeGetTensorImpl());
    if (found != sharded.end())
      each.tensor = torch_adapter::gather(each.tensor, found->second, group);
  }
  return tensors;
}

void load_full_tensors(torch::nn::Module& model, const std::vector<NamedTensor>& tensors,
                       const Communicator& group) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> given;
  for (const NamedTensor& each : tensors) given.emplace(each.name, each.tensor);
  const Dims sharded = sharded_dims(model);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const NamedTensor& each : tensors_of(model)) {
    const auto source = given.find(each.name);
    if (source == given.end()) {
      throw_invalid("load_full_tensors: there is no ", each.name, " among the tensors given");
    }
    std::vector<std::int64_t> whole = each.tensor.sizes().vec();
    const auto found = sharded.find(each.tensor.unsafeGetTensorImpl());
    const bool is_sharded = found != sharded.end();
    if (is_sharded) whole.at(static_cast<std::size_t>(found->second)) *= group.size();
    if (source->second.sizes() != at::IntArrayRef(whole)) {
      throw_invalid("load_full_tensors: ", each.name, " is of shape ",
                    c10::str(source->second.sizes()), ", the model's is ",
                    c10::str(at::IntArrayRef(whole)));
    }
    copies.emplace_back(each.tensor, is_sharded
                                         ? torch_adapter::own_part(source->second, found->second,
                                                                   group, each.name.c_str())
                                         : source->second);
  }
  for (auto& [to, from] : copies) to.copy_(from);
}

}  // namespace ddprun
