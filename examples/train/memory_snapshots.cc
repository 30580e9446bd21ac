// SPDX-License-Identifier: Apache-2.0
#include "examples/train/memory_snapshots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

constexpr std::size_t kNumKept = 2;

// On the host backend, the only one that goes on in place.
std::int64_t smallest_of_all(std::int64_t value, Communicator& communicator) {
  communicator.all_reduce({.data = &value, .count = 1, .dtype = DType::kInt64}, ReduceOp::kMin);
  return value;
}

}  // namespace

void MemorySnapshots::keep(const TrainingState& state, const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  Snapshot snapshot{state, {}};
  for (const NamedTensor& each : tensors) {
    snapshot.tensors.push_back({each.name, each.tensor.detach().clone()});
  }
  std::erase_if(snapshots_, [&](const Snapshot& old) { return old.state.step >= state.step; });
  if (snapshots_.size() == kNumKept) snapshots_.pop_front();
  snapshots_.push_back(std::move(snapshot));
}

std::optional<TrainingState> MemorySnapshots::load(const std::vector<NamedTensor>& tensors,
                                                   Communicator& communicator, c10::Device device) {
  const auto newest =
      static_cast<std::int64_t>(snapshots_.empty() ? 0 : snapshots_.back().state.step);
  const auto step = static_cast<std::uint64_t>(smallest_of_all(newest, communicator));
  std::deque<Snapshot> usable = snapshots_;
  std::erase_if(usable, [&](const Snapshot& each) { return each.state.step > step; });
  const bool is_there = step > 0 && !usable.empty() && usable.back().state.step == step &&
                        usable.back().tensors.size() == tensors.size();
  if (smallest_of_all(is_there ? 1 : 0, communicator) == 0) return std::nullopt;
  snapshots_ = std::move(usable);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> targets;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& from = snapshots_.back().tensors[i];
    if (from.name != tensors[i].name) {
      throw Error(ErrorCode::kProtocol, "a snapshot has other tensors: " + from.name);
    }
    at::Tensor target = tensors[i].tensor.detach();
    target.copy_(from.tensor);
    targets.push_back(std::move(target));
  }
  torch_adapter::broadcast_tensors(targets, 0, communicator, device);
  return snapshots_.back().state;
}

}  // namespace ddprun::train
