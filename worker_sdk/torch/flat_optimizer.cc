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

#include "common/check.h"
#include "common/throw_error.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/optimizer_parts.h"
#include "worker_sdk/torch/tensor_exchange.h"

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

void FlatOptimizerBase::set_lr(double lr) {
  for (std::size_t group = 0; group < rules_.size(); ++group) set_lr(group, lr);
}

void FlatOptimizerBase::set_lr(std::size_t group, double lr) {
  if (!std::isfinite(lr) || lr < 0) {
    throw_invalid(name_, ": lr is ", lr, ": it must be a number and not negative");
  }
  std::visit([lr](auto& rule) { rule.lr = lr; }, rules_.at(group));
}

void FlatOptimizerBase::add_item(NamedTensor parameter, std::size_t group, std::size_t home) {
  takes_overflow_ &= takes_overflow(rules_[group], parameter.tensor);
  items_.push_back({.parameter = std::move(parameter), .group = group, .home = home});
}

bool FlatOptimizerBase::reads_overflow(at::Tensor& overflow) {
  if (!overflow.defined()) return false;
  if (!takes_overflow_) return std::exchange(overflow, at::Tensor()).item<float>() != 0;
  // Counted before an update can throw.
  skipped_ = skipped_.defined() ? skipped_ + overflow.to(skipped_.device()) : overflow.clone();
  return false;
}

void FlatOptimizerBase::count_updates(const std::vector<std::size_t>& items) {
  for (const std::size_t item : items) {
    ++steps()[item];
    // Tells autograd that the values which it saved of the parameter are out of date.
    items_[item].parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void FlatOptimizerBase::update(const Batch& batch, const at::Tensor& overflow) {
  std::vector<float> run_steps;
  run_steps.reserve(batch.first_items.size());
  for (const std::size_t item : batch.first_items) run_steps.push_back(steps()[item]);
  const auto there = [&](const at::Tensor& number) {
    return number.defined() ? number.to(batch.values.front().device()) : number;
  };
  apply_rule(rules_[batch.group], {.values = batch.values,
                                   .gradients = batch.gradients,
                                   .states = batch.states,
                                   .steps = run_steps,
                                   .is_first = batch.is_first,
                                   .overflow = there(overflow),
                                   .skipped = there(skipped_)});
}

FlatOptimizerBase::Batch& FlatOptimizerBase::batch_of(std::vector<Batch>& batches,
                                                      std::size_t first, std::size_t group,
                                                      bool is_first) {
  for (std::size_t i = first; i < batches.size(); ++i) {
    if (batches[i].group == group && batches[i].is_first == is_first) return batches[i];
  }
  Batch& made = batches.emplace_back();
  made.group = group;
  made.is_first = is_first;
  return made;
}

float* FlatOptimizerBase::steps() const { return steps_.mutable_data_ptr<float>(); }

FlatOptimizer::FlatOptimizer(std::vector<ParameterGroup> groups, const DdpBase* ddp)
    : FlatOptimizerBase("optimiser"), ddp_(ddp) {
  if (ddp_ && ddp_->zero() != ZeroStage::kOff) {
    throw_invalid(
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
    const auto place = std::ranges::find(kinds, kind);
    const auto storage = static_cast<std::size_t>(place - kinds.begin());
    if (place == kinds.end()) {
      kinds.push_back(kind);
      storages_.emplace_back();
    }
    Storage& home = storages_[storage];
    home.items.push_back(items_.size());
    home.num_states = std::max(home.num_states, state_names(rules_[group]).size());
    add_item(std::move(parameter), group, storage);
  }
}

// Orders parameters as their gradients are in the buckets, then those that are in none.
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
    std::ranges::sort(storage.items,
                      [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
    lay_out(storage);
  }
  settle_skipped();
  gradients_.clear();
  batches_.clear();
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

// Returns the address of the gradient, after conversion to the parameter's layout; 0: it has none.
std::uintptr_t FlatOptimizer::dense_gradient(Item& item) {
  at::Tensor& tensor = item.parameter.tensor;
  if (tensor.const_data_ptr() != item.data) {
    throw_invalid("parameter ", item.parameter.name, " was moved or replaced", kAdvice);
  }
  at::Tensor& gradient = tensor.mutable_grad();
  if (!gradient.defined()) return 0;
  check_plain_gradient(tensor, item.parameter.name, {.have_graph = true});
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
  if (present == gradients_ && !has_first_) return;
  const auto both_or_none = [](std::uintptr_t a, std::uintptr_t b) { return (a == 0) == (b == 0); };
  if (!std::equal(present.begin(), present.end(), gradients_.begin(), gradients_.end(),
                  both_or_none)) {
    settle_skipped();  // from now on the number left out isn't the same for all
  }
  gradients_ = std::move(present);
  form_batches();
}

void FlatOptimizer::form_batches() {
  const std::vector<TensorView> buckets =
      ddp_ ? ddp_->gradient_buckets() : std::vector<TensorView>();
  std::vector<std::vector<FlatRun>> runs;
  for (const Storage& storage : storages_) runs.push_back(runs_of(storage, buckets));
  // Without buckets gradients lie elsewhere in each step, and nothing else changes. Batches of a
  // first update may join the others from the second update on.
  if (batches_.empty() || has_first_ || runs != runs_) {
    batches_.clear();
    has_first_ = false;
    for (std::size_t s = 0; s < storages_.size(); ++s) form_batches(storages_[s], runs[s]);
    runs_ = std::move(runs);
  }
  for (Batch& batch : batches_) point_at_gradients(batch);
}

std::vector<FlatRun> FlatOptimizer::runs_of(const Storage& storage,
                                            const std::vector<TensorView>& buckets) {
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
  return find_runs(pieces, storage.values.element_size());
}

void FlatOptimizer::form_batches(const Storage& storage, const std::vector<FlatRun>& runs) {
  const std::size_t first_batch = batches_.size();
  for (const FlatRun& run : runs) {
    const std::size_t first_item = storage.items[run.first_piece];
    // Parameters that are updated for the first time have separate batches: SGD treats them
    // differently.
    const bool is_first = steps()[first_item] == 0;
    has_first_ |= is_first;
    Batch& batch = batch_of(batches_, first_batch, items_[first_item].group, is_first);
    const auto count = static_cast<std::int64_t>(run.count);
    batch.values.push_back(piece_of(storage.values, run.offset, count));
    for (std::size_t s = 0; s < storage.num_states; ++s) {
      batch.states[s].push_back(piece_of(storage.states[s], run.offset, count));
    }
    batch.first_items.push_back(first_item);
    const auto items = storage.items.begin() + static_cast<std::ptrdiff_t>(run.first_piece);
    batch.items.insert(batch.items.end(), items,
                       items + static_cast<std::ptrdiff_t>(run.num_pieces));
  }
}

void FlatOptimizer::point_at_gradients(Batch& batch) {
  batch.gradients.clear();
  for (std::size_t run = 0; run < batch.values.size(); ++run) {
    const at::Tensor& values = batch.values[run];
    const at::Tensor& gradient = items_[batch.first_items[run]].parameter.tensor.grad();
    // The tensor owns nothing: the next forward may free what isn't in a bucket. The device is
    // given, so CUDA need not be asked for it.
    batch.gradients.push_back(at::for_blob(gradient.mutable_data_ptr(), values.sizes())
                                  .options(values.options())
                                  .target_device(values.device())
                                  .make_tensor());
  }
}

void FlatOptimizer::step(const at::Tensor& overflow) {
  const c10::NoGradGuard no_grad;
  at::Tensor unread = overflow;
  if (!takes_overflow_ && reads_overflow(unread)) return;
  refresh();
  reads_overflow(unread);  // the device will: counted now, since refresh() may settle the count
  for (const Batch& batch : batches_) {
    count_updates(batch.items);
    update(batch, unread);
  }
}

// Subtracts the updates that were left out from the numbers of updates. Waits for the device.
void FlatOptimizer::settle_skipped() {
  if (!skipped_.defined()) return;
  DDPRUN_CHECK(gradients_.size() == items_.size());
  const float count = std::exchange(skipped_, at::Tensor()).item<float>();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (gradients_[i] != 0) steps()[i] -= count;
  }
}

void FlatOptimizer::zero_grad() {
  for (Item& item : items_) item.parameter.tensor.mutable_grad().reset();
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
  settle_skipped();
  gradients_.clear();  // the caller may write to the steps, so runs are formed anew
  batches_.clear();
  std::vector<NamedState> all;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const at::Tensor& tensor = item.parameter.tensor;
    const std::vector<std::string_view> names = state_names(rules_[item.group]);
    for (std::size_t s = 0; s < names.size(); ++s) {
      all.push_back(
          {item.parameter.name, names[s],
           storages_[item.home].states[s].as_strided(tensor.sizes(), tensor.strides(),
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
