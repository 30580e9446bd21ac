// SPDX-License-Identifier: Apache-2.0
#include "examples/train/memory_snapshots.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "common/error.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::train {
namespace {

constexpr std::size_t kNumKept = 2;

std::int64_t smallest_of_all(std::int64_t value, Communicator& communicator, c10::Device device) {
  const at::Tensor all = at::full({1}, value, at::TensorOptions().dtype(at::kLong).device(device));
  communicator.all_reduce({.data = all.mutable_data_ptr(),
                           .count = 1,
                           .dtype = DType::kInt64,
                           .device = torch_adapter::comm_device_of(all)},
                          ReduceOp::kMin);
  return all.item<std::int64_t>();
}

}  // namespace

void MemorySnapshots::keep(const TrainingState& state, const std::vector<NamedTensor>& tensors,
                           Communicator& communicator, c10::Device device) {
  const c10::NoGradGuard no_grad;
  Snapshot snapshot{state, {}};
  for (const NamedTensor& each : tensors) {
    snapshot.tensors.push_back({each.name, each.tensor.detach().clone()});
  }
  // The step may still be under way on the GPU, and the abort of a communicator lets it pass with
  // rubbish (docs/nccl.md). A barrier behind the copies ends well only where nothing has failed.
  if (device.is_cuda()) communicator.barrier();
  std::erase_if(snapshots_, [&](const Snapshot& old) { return old.state.step >= state.step; });
  if (snapshots_.size() == kNumKept) snapshots_.pop_front();
  snapshots_.push_back(std::move(snapshot));
}

std::optional<TrainingState> MemorySnapshots::load(const std::vector<NamedTensor>& tensors,
                                                   Communicator& communicator, c10::Device device) {
  const auto newest =
      static_cast<std::int64_t>(snapshots_.empty() ? 0 : snapshots_.back().state.step);
  const auto step = static_cast<std::uint64_t>(smallest_of_all(newest, communicator, device));
  std::deque<Snapshot> usable = snapshots_;
  std::erase_if(usable, [&](const Snapshot& each) { return each.state.step > step; });
  const bool is_there = step > 0 && !usable.empty() && usable.back().state.step == step &&
                        usable.back().tensors.size() == tensors.size();
  if (smallest_of_all(is_there ? 1 : 0, communicator, device) == 0) return std::nullopt;
  snapshots_ = std::move(usable);
  const c10::NoGradGuard no_grad;
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
