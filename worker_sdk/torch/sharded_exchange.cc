// SPDX-License-Identifier: Apache-2.0
// What a ShardedOptimizer asks of the other ranks beside its steps: norms, and its state as a
// whole.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/ddp_impl.h"
#include "worker_sdk/torch/flat_memory.h"
#include "worker_sdk/torch/sharded_optimizer.h"
#include "worker_sdk/torch/tensor_exchange.h"
#include "worker_sdk/torch/update_rule_impl.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

constexpr const char* kStep = "step";

std::string key_of(const std::string& parameter, std::string_view state) {
  return concat(parameter, ".", state);
}

// Of order p over all ranks' tensors together, in float64; on the device, nobody waits for it.
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
  communicator.all_reduce(view_of(sum, "a norm"), is_max ? ReduceOp::kMax : ReduceOp::kSum);
  const at::Tensor total = sum.squeeze(0);
  return is_max ? total : total.pow(1 / p);
}

}  // namespace

at::Tensor ShardedOptimizer::clip_gradient_norm(const ClipOptions& options) {
  const c10::NoGradGuard no_grad;
  if (!(options.max_norm >= 0)) {
    refuse(concat("clipping: max_norm is ", options.max_norm, ": it must not be negative"));
  }
  if (!(options.norm_type > 0)) {
    refuse(concat("clipping: norm_type is ", options.norm_type, ": it must be above 0"));
  }
  const c10::Device device = ddp_.impl_->device();
  const std::vector<at::Tensor> all = gradients();
  at::Tensor total = norm_over_ranks(all, options.norm_type, ddp_.impl_->communicator(), device);
  clip_to_norm(all, total, options);
  return total;
}

// Of a bucket's memory, or of a copy that is laid out like it.
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
      ddp_.impl_->communicator().all_gather(view_of(bucket.states[s], "state"),
                                            view_of(whole, "state"));
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
      if (found == given.end()) refuse("state " + key + " is missing");
      const at::IntArrayRef here =
          name == kStep ? at::IntArrayRef() : item.parameter.tensor.sizes();
      if (found->second.sizes() != here) {
        refuse(concat("state ", key, " has shape ", found->second.sizes(), ", not ", here));
      }
      known.insert(key);
    }
  }
  for (const auto& [key, tensor] : given) {
    if (!known.contains(key)) refuse("state " + key + " is not this optimiser's");
  }
}

void ShardedOptimizer::load_state(const std::vector<NamedState>& state) {
  const c10::NoGradGuard no_grad;
  StateByName given;
  for (const NamedState& each : state) {
    const std::string key = key_of(each.parameter, each.name);
    if (!given.emplace(key, each.tensor).second) refuse("state " + key + " is there twice");
  }
  check_state(given);
  for (Bucket& bucket : buckets_) {
    for (const ShardPiece& piece : bucket.pieces) {
      if (item_of_[piece.parameter] >= items_.size()) continue;  // in no group
      const Item& item = items_[item_of_[piece.parameter]];
      const at::Tensor& tensor = item.parameter.tensor;
      const auto names = state_names(rules_[item.group]);
      for (std::size_t s = 0; s < names.size(); ++s) {
        // In the order in which the parameter lies in memory.
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
