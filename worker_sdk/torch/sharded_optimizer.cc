// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/sharded_optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/ddp/flat_runs.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/gradient_buckets.h"
#include "worker_sdk/torch/kept_on_error.h"
#include "worker_sdk/torch/optimizer_parts.h"
#include "worker_sdk/torch/tensor_exchange.h"
#include "worker_sdk/torch/wrapped_model.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

constexpr std::size_t kNoItem = std::numeric_limits<std::size_t>::max();
constexpr const char* kStep = "step";

std::string key_of(const std::string& parameter, std::string_view state) {
  return concat(parameter, ".", state);
}

// Returns the norm of order p over all ranks' tensors together, in float64. It stays on the device,
// without a wait.
at::Tensor norm_over_ranks(const std::vector<at::Tensor>& tensors, double p,
                           Communicator& communicator, c10::Device device) {
  const bool is_max = std::isinf(p);
  at::Tensor sum = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device));
  if (!tensors.empty()) {
    std::vector<at::Tensor> norms = at::_foreach_norm(tensors, p);
    for (at::Tensor& norm : norms) norm = norm.to(device, at::kDouble);
    const at::Tensor all = at::stack(norms);
    sum[0].copy_(is_max ? at::nan_to_num(all, INFINITY, INFINITY).max() : all.pow(p).sum());
  }
  const KeptOnError kept(communicator, {sum});
  say_what_for("ranks add up their shards' norm: all ranks clip", [&] {
    communicator.all_reduce(view_of(sum, "a norm"), is_max ? ReduceOp::kMax : ReduceOp::kSum);
  });
  const at::Tensor total = sum.squeeze(0);
  return is_max ? total : total.pow(1 / p);
}

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... why) {
  throw_invalid("ShardedOptimizer: ", why...);
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::vector<ParameterGroup> groups, DdpBase& ddp)
    : FlatOptimizerBase("ShardedOptimizer"), ddp_(ddp) {
  if (ddp_.zero() == ZeroStage::kOff) refuse("needs DdpOptions::zero; without it FlatOptimizer");
  if (ddp_.has_optimizer_) refuse("there is one for this DistributedDataParallel already");
  for (const ParameterGroup& group : groups) rules_.push_back(group.rule);
  add_items(std::move(groups));
  steps_ = at::zeros({static_cast<std::int64_t>(items_.size())}, at::kFloat);
  buckets_.resize(ddp_.bucket_plan().size());
  for (std::size_t number = 0; number < buckets_.size(); ++number) lay_out(number);
  ddp_.has_optimizer_ = true;
}

ShardedOptimizer::~ShardedOptimizer() { ddp_.has_optimizer_ = false; }

void ShardedOptimizer::add_items(std::vector<ParameterGroup> groups) {
  std::unordered_map<const void*, std::size_t> index_of;
  for (const at::Tensor& parameter : ddp_.parameters()) {
    index_of.emplace(parameter.unsafeGetTensorImpl(), index_of.size());
  }
  item_of_.assign(index_of.size(), kNoItem);
  for (auto& [parameter, group] : grouped_parameters(std::move(groups))) {
    const auto found = index_of.find(parameter.tensor.unsafeGetTensorImpl());
    if (found == index_of.end()) {
      refuse("the gradient of ", parameter.name,
             " is not averaged: leave it to an optimiser of "
             "its own");
    }
    item_of_[found->second] = items_.size();
    add_item(std::move(parameter), group, kNoItem);
  }
}

// Moves the bucket's parameters into memory with the layout of their gradients.
void ShardedOptimizer::lay_out(std::size_t number) {
  const c10::NoGradGuard no_grad;
  const Reducer& reducer = ddp_.buckets_->reducer();
  const Communicator& communicator = ddp_.model_->communicator();
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const auto num_ranks = static_cast<std::size_t>(communicator.size());
  const BucketLayout& layout = reducer.layout();
  const std::vector<std::size_t>& indices = reducer.plan()[number];
  Bucket& bucket = buckets_[number];

  const at::TensorOptions options =
      ddp_.parameters()[indices.front()].options().requires_grad(false);
  const std::size_t count = layout.buckets[number].count, part = count / num_ranks;
  bucket.all = flat_memory(static_cast<std::int64_t>(count), options);
  bucket.values = piece_of(bucket.all, rank * part, part);
  bucket.gradients =
      at::from_blob(reducer.shard(number).data, {static_cast<std::int64_t>(part)}, options);
  bucket.pieces = pieces_of(reducer.parameters(), reducer.plan(), layout, rank, num_ranks)[number];
  std::size_t num_states = 0;
  for (const std::size_t index : indices) {
    at::Tensor tensor = ddp_.parameters()[index];
    const std::size_t offset =
        (layout.slots[index].offset_bytes - layout.buckets[number].offset_bytes) /
        tensor.element_size();
    const at::Tensor place = bucket.all.as_strided(tensor.sizes(), dense_strides(tensor),
                                                   static_cast<std::int64_t>(offset));
    place.copy_(tensor);
    tensor.set_data(place);
    if (item_of_[index] == kNoItem) continue;
    Item& item = items_[item_of_[index]];
    item.home = number;
    item.offset = offset;
    item.data = tensor.const_data_ptr();
    bucket.items.push_back(item_of_[index]);
    num_states = std::max(num_states, state_names(rules_[item.group]).size());
  }
  for (std::size_t s = 0; s < num_states; ++s) {
    bucket.states[s] = flat_memory(static_cast<std::int64_t>(part), options);
  }
}

void ShardedOptimizer::check_in_place() const {
  for (const Item& item : items_) {
    if (item.parameter.tensor.const_data_ptr() == item.data) continue;
    refuse("parameter ", item.parameter.name,
           " was moved or replaced: make the optimiser after the model is on its device");
  }
}

// Batches this rank's part: adjacent pieces of one group and number of updates become one array.
void ShardedOptimizer::form_batches(Bucket& bucket) {
  bucket.batches.clear();
  std::vector<FlatPiece> pieces;
  const auto base = reinterpret_cast<std::uintptr_t>(bucket.gradients.const_data_ptr());
  for (const ShardPiece& each : bucket.pieces) {
    const std::size_t item = item_of_[each.parameter];
    FlatPiece piece{.offset = each.offset, .count = each.count, .bucket = 0};
    if (item != kNoItem) {
      piece.gradient = base + each.offset * bucket.gradients.element_size();
      piece.group = items_[item].group;
      piece.num_updates = static_cast<std::uint64_t>(steps()[item]);
    }
    pieces.push_back(piece);
  }
  for (const FlatRun& run : find_runs(pieces, bucket.gradients.element_size())) {
    const FlatPiece& first = pieces[run.first_piece];
    Batch& batch = batch_of(bucket.batches, 0, first.group, first.num_updates == 0);
    batch.values.push_back(piece_of(bucket.values, run.offset, run.count));
    batch.gradients.push_back(piece_of(bucket.gradients, run.offset, run.count));
    for (std::size_t s = 0; s < kMaxStates && bucket.states[s].defined(); ++s) {
      batch.states[s].push_back(piece_of(bucket.states[s], run.offset, run.count));
    }
    batch.first_items.push_back(item_of_[bucket.pieces[run.first_piece].parameter]);
  }
}

void ShardedOptimizer::update(Bucket& bucket, const at::Tensor& overflow) {
  if (bucket.batches.empty()) form_batches(bucket);
  count_updates(bucket.items);
  bool any_first = false;
  for (const Batch& batch : bucket.batches) {
    any_first |= batch.is_first;
    update(batch, overflow);
  }
  if (any_first) bucket.batches.clear();
}

void ShardedOptimizer::step(const at::Tensor& overflow) {
  const c10::NoGradGuard no_grad;
  check_in_place();
  if (!ddp_.buckets_->has_averages()) return;
  at::Tensor unread = overflow;
  if (reads_overflow(unread)) return;
  std::vector<at::Tensor> sent;
  for (const Bucket& bucket : buckets_) sent.push_back(bucket.all);
  const KeptOnError kept(ddp_.model_->communicator(), sent);
  // A bucket's new values are being sent while the next one is updated.
  std::vector<WorkPtr> works;
  for (Bucket& bucket : buckets_) {
    update(bucket, unread);
    works.push_back(ddp_.model_->communicator().all_gather(
        view_of(bucket.values, "parameters"), view_of(bucket.all, "parameters"), {.async = true}));
  }
  for (const WorkPtr& work : works) work->wait();
}

// Subtracts the updates that were left out from the numbers of updates; all have the same. Waits
// for the device.
void ShardedOptimizer::settle_skipped() {
  if (skipped_.defined()) steps_.sub_(std::exchange(skipped_, at::Tensor()).item<float>());
}

void ShardedOptimizer::zero_grad() { ddp_.zero_grad(); }

std::vector<at::Tensor> ShardedOptimizer::gradients() {
  std::vector<at::Tensor> all;
  if (!ddp_.buckets_->has_averages()) return all;
  for (const Bucket& bucket : buckets_) {
    for (const ShardPiece& piece : bucket.pieces) {
      if (item_of_[piece.parameter] == kNoItem) continue;
      all.push_back(piece_of(bucket.gradients, piece.offset, piece.count));
    }
  }
  return all;
}

std::size_t ShardedOptimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    for (const at::Tensor& state : bucket.states) bytes += state.defined() ? state.nbytes() : 0;
  }
  return bytes;
}

at::Tensor ShardedOptimizer::clip_gradient_norm(const ClipOptions& options) {
  const c10::NoGradGuard no_grad;
  if (!(options.max_norm >= 0)) {
    refuse("clipping: max_norm is ", options.max_norm, ": it must not be negative");
  }
  if (!(options.norm_type > 0)) {
    refuse("clipping: norm_type is ", options.norm_type, ": it must be above 0");
  }
  const c10::Device device = ddp_.model_->device();
  const std::vector<at::Tensor> all = gradients();
  at::Tensor total = norm_over_ranks(all, options.norm_type, ddp_.model_->communicator(), device);
  clip_to_norm(all, total, options);
  return total;
}

// `flat` is a bucket's memory, or a copy with its layout.
at::Tensor ShardedOptimizer::place_in(const at::Tensor& flat, const Item& item) const {
  const at::Tensor& tensor = item.parameter.tensor;
  return flat.as_strided(tensor.sizes(), tensor.strides(), static_cast<std::int64_t>(item.offset));
}

void ShardedOptimizer::for_each_state(const std::function<void(const NamedState&)>& use) {
  const c10::NoGradGuard no_grad;
  settle_skipped();
  for (const Bucket& bucket : buckets_) {
    for (std::size_t s = 0; s < kMaxStates && bucket.states[s].defined(); ++s) {
      const at::Tensor whole = at::empty_like(bucket.all);
      {
        const KeptOnError kept(ddp_.model_->communicator(), {bucket.states[s], whole});
        ddp_.model_->communicator().all_gather(view_of(bucket.states[s], "state"),
                                               view_of(whole, "state"));
      }
      for (const std::size_t item : bucket.items) {
        const auto names = state_names(rules_[items_[item].group]);
        if (s >= names.size()) continue;
        use({items_[item].parameter.name, names[s], place_in(whole, items_[item])});
      }
    }
  }
  for (std::size_t item = 0; item < items_.size(); ++item) {
    use({items_[item].parameter.name, kStep, steps_[static_cast<std::int64_t>(item)]});
  }
}

std::vector<NamedState> ShardedOptimizer::state() {
  StateByName copies;
  for_each_state([&](const NamedState& each) {
    copies[key_of(each.parameter, each.name)] =
        each.tensor.to(at::kCPU, each.tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  });
  std::vector<NamedState> all;
  for (const Item& item : items_) {
    auto names = state_names(rules_[item.group]);
    names.emplace_back(kStep);
    for (const std::string_view name : names) {
      all.push_back({item.parameter.name, name, copies.at(key_of(item.parameter.name, name))});
    }
  }
  return all;
}

void ShardedOptimizer::check_state(const StateByName& given) const {
  std::set<std::string> known;
  for (const Item& item : items_) {
    auto names = state_names(rules_[item.group]);
    names.emplace_back(kStep);
    for (const std::string_view name : names) {
      const std::string key = key_of(item.parameter.name, name);
      const auto found = given.find(key);
      if (found == given.end()) refuse("state ", key, " is missing");
      const at::IntArrayRef here =
          name == kStep ? at::IntArrayRef() : item.parameter.tensor.sizes();
      if (found->second.sizes() != here) {
        refuse("state ", key, " has shape ", found->second.sizes(), ", not ", here);
      }
      known.insert(key);
    }
  }
  for (const auto& [key, tensor] : given) {
    if (!known.contains(key)) refuse("state ", key, " is not this optimiser's");
  }
}

void ShardedOptimizer::load_state(const std::vector<NamedState>& state) {
  const c10::NoGradGuard no_grad;
  StateByName given;
  for (const NamedState& each : state) {
    const std::string key = key_of(each.parameter, each.name);
    if (!given.emplace(key, each.tensor).second) refuse("state ", key, " is there twice");
  }
  check_state(given);
  for (Bucket& bucket : buckets_) {
    for (const ShardPiece& piece : bucket.pieces) {
      if (item_of_[piece.parameter] >= items_.size()) continue;  // it is in no group
      const Item& item = items_[item_of_[piece.parameter]];
      const at::Tensor& tensor = item.parameter.tensor;
      const auto names = state_names(rules_[item.group]);
      for (std::size_t s = 0; s < names.size(); ++s) {
        // Pieces count elements in the order in which the parameter lies in memory.
        const at::Tensor dense = at::empty_strided(tensor.sizes(), tensor.strides(),
                                                   tensor.options().requires_grad(false));
        dense.copy_(given.at(key_of(item.parameter.name, names[s])));
        piece_of(bucket.states[s], piece.offset, piece.count)
            .copy_(piece_of(dense.as_strided({tensor.numel()}, {1}), piece.first, piece.count));
      }
    }
    bucket.batches.clear();
  }
  skipped_.reset();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    steps_[static_cast<std::int64_t>(i)].copy_(given.at(key_of(items_[i].parameter.name, kStep)));
  }
}

}  // namespace ddprun
