// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/top_k_hook.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/host/reduce_kernels.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"

namespace ddprun {
namespace {

// As integers magnitudes have the order of the numbers, with NaN above infinity.
std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// Calls take(index) for the `num_taken` largest of `values`, in order. `scratch` is changed.
template <typename Take>
void take_largest(const float* values, std::size_t count, std::size_t num_taken,
                  std::vector<std::uint32_t>& scratch, const Take& take) {
  scratch.resize(count);
  std::transform(values, values + count, scratch.begin(), magnitude);
  const auto last = scratch.begin() + static_cast<std::ptrdiff_t>(num_taken - 1);
  std::nth_element(scratch.begin(), last, scratch.end(), std::greater<>());
  const std::uint32_t threshold = *last;
  const auto larger =
      std::count_if(scratch.begin(), last, [&](std::uint32_t each) { return each > threshold; });
  std::size_t num_equal = num_taken - static_cast<std::size_t>(larger);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t each = magnitude(values[i]);
    if (each < threshold) continue;
    if (each == threshold) {
      if (num_equal == 0) continue;
      --num_equal;
    }
    take(i);
  }
}

}  // namespace

TopKHook::TopKHook(double ratio, std::uint64_t start_iteration)
    : ratio_(ratio), start_iteration_(start_iteration) {
  DDPRUN_CHECK(ratio > 0 && ratio <= 1);
}

std::size_t TopKHook::num_sent(const GradBucket& bucket) const {
  std::size_t count = 0;
  for (const GradBucket::Gradient& gradient : bucket.gradients) count += gradient.view.count;
  const double wanted = std::floor(ratio_ * static_cast<double>(count) + 0.5);
  return std::max<std::size_t>(1, static_cast<std::size_t>(wanted));
}

std::size_t TopKHook::part_bytes(const GradBucket& bucket) const {
  return num_sent(bucket) * (sizeof(float) + sizeof(std::uint32_t));
}

void TopKHook::prepare(std::span<const GradBucket> buckets, Communicator& communicator) {
  hooks::check_on_cpu(buckets);
  for (const GradBucket& bucket : buckets) {
    if (!hooks::is_compressible(bucket.view)) continue;
    if (bucket.view.count > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("top-k compression: the bucket of ", bucket.gradients.front().name,
                         " has ", bucket.view.count, " elements, more than 32 bit indices reach"));
    }
    errors_.prepare(bucket);
  }
  const auto bytes_of = [this](const GradBucket& bucket) { return part_bytes(bucket); };
  hooks::allocate_gathered(buckets, bytes_of, communicator, buffers_);
}

HookStep TopKHook::run(const GradBucket& bucket, int step, Communicator& communicator) {
  if (bucket.index == 0 && step == 0) {
    compresses_ = static_cast<std::uint64_t>(iterations_) >= start_iteration_;
    ++iterations_;
  }
  if (!compresses_ || !buffers_[bucket.index]) {
    return hooks::average_as_it_is(bucket, step, communicator);
  }
  const std::size_t num = num_sent(bucket);
  const hooks::Gathered gathered(*buffers_[bucket.index], part_bytes(bucket), communicator);
  const auto values_of = [&](int rank) { return reinterpret_cast<float*>(gathered.part(rank)); };
  const auto indices_of = [&](int rank) {
    return reinterpret_cast<std::uint32_t*>(values_of(rank) + num);
  };
  auto* const gradients = static_cast<float*>(bucket.view.data);
  if (step == 0) {
    float* value = values_of(communicator.rank());
    std::uint32_t* index = indices_of(communicator.rank());
    errors_.add_to(bucket);
    take_largest(gradients, bucket.view.count, num, magnitudes_, [&](std::size_t taken) {
      *index++ = static_cast<std::uint32_t>(taken);
      *value++ = gradients[taken];
      gradients[taken] = 0;
    });
    errors_.take_from(bucket);
    return gathered.start();
  }
  std::fill_n(gradients, bucket.view.count, 0.0F);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const float* const values = values_of(rank);
    const std::uint32_t* const indices = indices_of(rank);
    for (std::size_t i = 0; i < num; ++i) gradients[indices[i]] += values[i];
  }
  host::reduce_kernels().divide(gradients, bucket.view.count, DType::kFloat32, communicator.size());
  return {};
}

std::vector<HookTensor> TopKHook::state() {
  std::vector<HookTensor> state{
      {.name = "topk.iterations",
       .shape = {1},
       .view = {.data = &iterations_, .count = 1, .dtype = DType::kInt64}}};
  errors_.append_state(state);
  return state;
}

}  // namespace ddprun
