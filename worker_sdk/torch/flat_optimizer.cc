// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/flat_optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/ddp/flat_runs.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_memory.h"
#include "worker_sdk/torch/update_rule_impl.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

constexpr const char* kAdvice = ": make the optimiser after the model is on its device";

std::uintptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

}  // namespace

std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> found;
  std::set<const void*> known;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    if (!known.insert(item.value().unsafeGetTensorImpl()).second) continue;
    found.push_back({item.key(), item.value()});
  }
  return found;
}

FlatOptimizer::FlatOptimizer(std::vector<ParameterGroup> groups, const DdpBase* ddp) : ddp_(ddp) {
  if (ddp_ && ddp_->zero() != ZeroStage::kOff) {
    throw Error(ErrorCode::kInvalidArgument,
                "FlatOptimizer: with DdpOptions::zero no rank has whole averages: use a "
                "ShardedOptimizer");
  }
  for (const ParameterGroup& group : groups) rules_.push_back(group.rule);
  add_items(std::move(groups));
  steps_ = at::zeros({static_cast<std::int64_t>(items_.size())}, at::kFloat);
  if (ddp_) plan_ = ddp_->bucket_plan();
  follow_buckets();
}

void FlatOptimizer::add_items(std::vector<ParameterGroup> groups) {
  std::vector<std::pair<at::ScalarType, at::Device>> kinds;
  for (auto& [parameter, group] : grouped_parameters(std::move(groups))) {
    const std::pair kind(parameter.tensor.scalar_type(), parameter.tensor.device());
    const auto place = std::find(kinds.begin(), kinds.end(), kind);
    const auto storage = static_cast<std::size_t>(place - kinds.begin());
    if (place == kinds.end()) {
      kinds.push_back(kind);
      storages_.emplace_back();
    }
    Storage& home = storages_[storage];
    home.items.push_back(items_.size());
    home.num_states = std::max(home.num_states, state_names(rules_[group]).size());
    items_.push_back({.parameter = std::move(parameter), .group = group, .storage = storage});
  }
}

// Parameters in the order of their gradients in the buckets, then those that are in none.
void FlatOptimizer::follow_buckets() {
  std::unordered_map<const void*, std::size_t> position;
  for (const std::vector<std::size_t>& bucket : plan_) {
    for (const std::size_t index : bucket) {
      position.emplace(ddp_->parameters()[index].unsafeGetTensorImpl(), position.size());
    }
  }
  const auto rank = [&](std::size_t item) {
    const auto found = position.find(items_[item].parameter.tensor.unsafeGetTensorImpl());
    return found == position.end() ? position.size() + item : found->second;
  };
  for (Storage& storage : storages_) {
    std::sort(storage.items.begin(), storage.items.end(),
              [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
    lay_out(storage);
  }
  gradients_.clear();
}

void FlatOptimizer::lay_out(Storage& storage) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& first = items_[storage.items.front()].parameter.tensor;
  const std::size_t alignment = kGradientAlignment / first.element_size();
  std::vector<std::size_t> offsets;
  std::size_t end = 0;
  for (const std::size_t item : storage.items) {
    end = (end + alignment - 1) / alignment * alignment;
    offsets.push_back(end);
    end += static_cast<std::size_t>(items_[item].parameter.tensor.numel());
  }
  const Storage old = storage;
  const auto fresh = [&] {
    return flat_memory(static_cast<std::int64_t>(end), first.options().requires_grad(false));
  };
  storage.values = fresh();
  for (std::size_t s = 0; s < storage.num_states; ++s) storage.states[s] = fresh();
  for (std::size_t i = 0; i < storage.items.size(); ++i) {
    Item& item = items_[storage.items[i]];
    at::Tensor& tensor = item.parameter.tensor;
    const at::Tensor place = storage.values.as_strided(tensor.sizes(), dense_strides(tensor),
                                                       static_cast<std::int64_t>(offsets[i]));
    place.copy_(tensor);
    for (std::size_t s = 0; s < storage.num_states && old.values.defined(); ++s) {
      piece_of(storage.states[s], offsets[i], tensor.numel())
          .copy_(piece_of(old.states[s], item.offset, tensor.numel()));
    }
    tensor.set_data(place);
    item.offset = offsets[i];
    item.data = tensor.const_data_ptr();
  }
}

// The address of the gradient, brought into the parameter's own layout; 0: it has none.
std::uintptr_t FlatOptimizer::dense_gradient(Item& item) {
  at::Tensor& tensor = item.parameter.tensor;
  if (tensor.const_data_ptr() != item.data) {
    throw Error(ErrorCode::kInvalidArgument,
                "parameter " + item.parameter.name + " was moved or replaced" + kAdvice);
  }
  at::Tensor& gradient = tensor.mutable_grad();
  if (!gradient.defined()) return 0;
  if (gradient.layout() != c10::kStrided) {
    throw Error(ErrorCode::kUnsupported, "the gradient of " + item.parameter.name +
                                             " is sparse: this optimiser needs a dense one");
  }
  if (gradient.strides() != tensor.strides()) {
    const at::Tensor dense = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    gradient = dense.copy_(gradient);
  }
  return address_of(gradient);
}

void FlatOptimizer::refresh() {
  const c10::NoGradGuard no_grad;
  if (ddp_ && ddp_->bucket_plan() != plan_) {
    plan_ = ddp_->bucket_plan();
    follow_buckets();
  }
  std::vector<std::uintptr_t> present;
  present.reserve(items_.size());
  for (Item& item : items_) present.push_back(dense_gradient(item));
  if (present == gradients_) return;
  gradients_ = std::move(present);
  form_batches();
}

void FlatOptimizer::form_batches() {
  batches_.clear();
  const std::vector<TensorView> buckets =
      ddp_ ? ddp_->gradient_buckets() : std::vector<TensorView>();
  for (const Storage& storage : storages_) form_batches(storage, buckets);
}

void FlatOptimizer::form_batches(const Storage& storage, const std::vector<TensorView>& buckets) {
  std::vector<FlatPiece> pieces;
  for (const std::size_t index : storage.items) {
    const Item& item = items_[index];
    pieces.push_back(
        {.offset = item.offset,
         .count = static_cast<std::size_t>(item.parameter.tensor.numel()),
         .gradient = gradients_[index],
         .bucket = find_bucket(buckets, gradients_[index], item.parameter.tensor.nbytes()),
         .group = item.group,
         .num_updates = static_cast<std::uint64_t>(steps()[index])});
  }
  const std::size_t first_batch = batches_.size();
  for (const FlatRun& run : find_runs(pieces, storage.values.element_size())) {
    const FlatPiece& piece = pieces[run.first_piece];
    const std::size_t first_item = storage.items[run.first_piece];
    // Those that are updated for the first time by themselves: SGD treats them differently.
    const auto fits = [&](const Batch& batch) {
      return batch.group == piece.group &&
             (steps()[batch.items.front()] == 0) == (piece.num_updates == 0);
    };
    const auto begin = batches_.begin() + static_cast<std::ptrdiff_t>(first_batch);
    auto batch = std::find_if(begin, batches_.end(), fits);
    if (batch == batches_.end()) {
      batches_.emplace_back().group = piece.group;
      batch = batches_.end() - 1;
    }
    const auto count = static_cast<std::int64_t>(run.count);
    const at::Tensor& gradient = items_[first_item].parameter.tensor.grad();
    batch->values.push_back(piece_of(storage.values, run.offset, count));
    // Owns nothing: the next forward may free what isn't in a bucket.
    batch->gradients.push_back(
        at::from_blob(gradient.mutable_data_ptr(), {count}, storage.values.options()));
    for (std::size_t s = 0; s < storage.num_states; ++s) {
      batch->states[s].push_back(piece_of(storage.states[s], run.offset, count));
    }
    batch->steps.push_back(steps_[static_cast<std::int64_t>(first_item)]);
    const auto items = storage.items.begin() + static_cast<std::ptrdiff_t>(run.first_piece);
    batch->items.insert(batch->items.end(), items,
                        items + static_cast<std::ptrdiff_t>(run.num_pieces));
  }
}

float* FlatOptimizer::steps() const { return steps_.mutable_data_ptr<float>(); }

void FlatOptimizer::update(Batch& batch) {
  const bool is_first = steps()[batch.items.front()] == 0;
  for (const std::size_t item : batch.items) {
    ++steps()[item];
    // What autograd saved of the parameter is out of date now: it notices.
    items_[item].parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  std::vector<at::Tensor> on_device = batch.steps;
  const at::Device device = batch.values.front().device();
  if (!device.is_cpu()) {
    for (at::Tensor& step : on_device) {
      step = at::full({}, step.item<float>(), step.options().device(device));
    }
  }
  apply_rule(rules_[batch.group], {.values = batch.values,
                                   .gradients = batch.gradients,
                                   .states = batch.states,
                                   .steps = on_device,
                                   .is_first = is_first});
}

void FlatOptimizer::step() {
  const c10::NoGradGuard no_grad;
  refresh();
  for (Batch& batch : batches_) update(batch);
}

void FlatOptimizer::zero_grad() {
  for (Item& item : items_) item.parameter.tensor.mutable_grad().reset();
}

void FlatOptimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < rules_.size(); ++group) set_lr(group, lr);
}

void FlatOptimizer::set_lr(std::size_t group, double lr) {
  if (!std::isfinite(lr) || lr < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("optimiser: lr is ", lr, ": it must be a number and not negative"));
  }
  std::visit([lr](auto& rule) { rule.lr = lr; }, rules_.at(group));
}

std::vector<at::Tensor> FlatOptimizer::gradients() {
  refresh();
  std::vector<at::Tensor> all;
  for (const Item& item : items_) {
    const at::Tensor& gradient = item.parameter.tensor.grad();
    if (gradient.defined()) all.push_back(gradient);
  }
  return all;
}

std::vector<NamedState> FlatOptimizer::state() {
  const c10::NoGradGuard no_grad;
  gradients_.clear();  // the steps may be written to: runs are formed anew
  batches_.clear();
  std::vector<NamedState> all;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const at::Tensor& tensor = item.parameter.tensor;
    const std::vector<std::string_view> names = state_names(rules_[item.group]);
    for (std::size_t s = 0; s < names.size(); ++s) {
      all.push_back(
          {item.parameter.name, names[s],
           storages_[item.storage].states[s].as_strided(tensor.sizes(), tensor.strides(),
                                                        static_cast<std::int64_t>(item.offset))});
    }
    all.push_back({item.parameter.name, "step", steps_[static_cast<std::int64_t>(i)]});
  }
  return all;
}

std::size_t FlatOptimizer::num_runs() const {
  std::size_t count = 0;
  for (const Batch& batch : batches_) count += batch.values.size();
  return count;
}

}  // namespace ddprun
