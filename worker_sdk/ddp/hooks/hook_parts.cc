// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/hook_parts.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/throw_error.h"

namespace ddprun::hooks {

void check_on_cpu(std::span<const GradBucket> buckets) {
  for (const GradBucket& bucket : buckets) {
    if (bucket.view.device.kind == Device::Kind::kCpu) continue;
    throw_invalid("gradients are compressed in the memory of the CPU, but that of ",
                  bucket.gradients.front().name,
                  " is on a GPU: train on the CPU, or don't compress");
  }
}

bool is_compressible(const TensorView& bucket) {
  return bucket.dtype == DType::kFloat32 && bucket.count > 0;
}

HookStep average_as_it_is(const GradBucket& bucket, int step, Communicator& communicator) {
  if (step != 0) return {};
  return {communicator.all_reduce(bucket.view, ReduceOp::kAverage, {.async = true}),
          bucket.view.size_bytes()};
}

void allocate(std::span<const GradBucket> buckets, const BytesOf& bytes_of,
              Communicator& communicator, Buffers& buffers) {
  buffers.clear();
  for (const GradBucket& bucket : buckets) {
    const bool compresses = is_compressible(bucket.view);
    buffers.push_back(compresses ? communicator.allocate(bytes_of(bucket)) : nullptr);
  }
}

void allocate_gathered(std::span<const GradBucket> buckets, const BytesOf& part_bytes,
                       Communicator& communicator, Buffers& buffers) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const auto all = [&](const GradBucket& bucket) { return size * part_bytes(bucket); };
  allocate(buckets, all, communicator, buffers);
}

HookStep Gathered::start() const {
  const TensorView mine{
      .data = part(communicator_.rank()), .count = part_bytes_, .dtype = DType::kUInt8};
  const TensorView all{.data = data_,
                       .count = part_bytes_ * static_cast<std::size_t>(communicator_.size()),
                       .dtype = DType::kUInt8};
  return {communicator_.all_gather(mine, all, {.async = true}), part_bytes_};
}

void ErrorFeedback::prepare(const GradBucket& bucket) {
  for (const GradBucket::Gradient& gradient : bucket.gradients) prepare(gradient);
}

void ErrorFeedback::prepare(const GradBucket::Gradient& gradient) {
  const auto [place, is_new] = entries_.try_emplace(gradient.parameter);
  Entry& entry = place->second;
  if (is_new) {
    entry = {gradient.name, gradient.shape, std::vector<float>(gradient.view.count)};
  } else if (entry.name != gradient.name || entry.values.size() != gradient.view.count) {
    throw_invalid("this hook has the gradients of another model (", entry.name,
                  "): make one for each");
  }
}

void ErrorFeedback::add_to(const GradBucket& bucket) const {
  for (const GradBucket::Gradient& gradient : bucket.gradients) {
    const auto found = entries_.find(gradient.parameter);
    if (found == entries_.end()) continue;
    auto* const values = static_cast<float*>(gradient.view.data);
    const float* const error = found->second.values.data();
    for (std::size_t i = 0; i < gradient.view.count; ++i) values[i] += error[i];
  }
}

void ErrorFeedback::take_from(const GradBucket& bucket) {
  for (const GradBucket::Gradient& gradient : bucket.gradients) {
    const auto* const values = static_cast<const float*>(gradient.view.data);
    std::transform(values, values + gradient.view.count, of(gradient),
                   [](float value) { return std::isfinite(value) ? value : 0; });
  }
}

void ErrorFeedback::take_back(const GradBucket::Gradient& gradient) {
  const auto found = entries_.find(gradient.parameter);
  if (found == entries_.end()) return;
  const auto* const values = static_cast<const float*>(gradient.view.data);
  for (std::size_t i = 0; i < gradient.view.count; ++i) {
    if (std::isfinite(values[i])) found->second.values[i] += values[i];
  }
}

float* ErrorFeedback::of(const GradBucket::Gradient& gradient) {
  const auto found = entries_.find(gradient.parameter);
  DDPRUN_CHECK(found != entries_.end());
  return found->second.values.data();
}

void ErrorFeedback::append_state(std::vector<HookTensor>& state) {
  for (auto& [parameter, entry] : entries_) {
    state.push_back({.name = "error." + entry.name,
                     .shape = entry.shape,
                     .view = {.data = entry.values.data(), .count = entry.values.size()},
                     .per_rank = true});
  }
}

bool FeedbackHook::compresses(const GradBucket& bucket, int step) {
  if (bucket.index == 0 && step == 0) {
    compresses_ = static_cast<std::uint64_t>(iterations_) >= start_iteration_;
    ++iterations_;
  }
  return compresses_;
}

HookTensor FeedbackHook::iterations(const std::string& name) {
  return {.name = name + ".iterations",
          .shape = {1},
          .view = {.data = &iterations_, .count = 1, .dtype = DType::kInt64}};
}

}  // namespace ddprun::hooks
