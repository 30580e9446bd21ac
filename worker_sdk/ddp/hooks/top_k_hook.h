// SPDX-License-Identifier: Apache-2.0
// Only the largest gradients travel; the others are kept, added up, until they are large.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/hooks/error_feedback.h"

namespace ddprun {

// Per bucket of n elements, with sum = gradient + error: the k = max(1, ratio · n rounded) elements
// of sum that have the largest magnitude (of equal ones those that come first; NaN is largest) go
// to all ranks, each as a float and a 32 bit index: 8 · k bytes. error = sum without them.
// average = what all ranks sent, added up in the order of the ranks, divided by the world size.
// Buckets of other dtypes are averaged as they are. Memory of the CPU only.
class TopKHook : public CommHook {
 public:
  // 0 < ratio ≤ 1. The first `start_iteration` iterations are averaged as they are: early gradients
  // change faster than what is kept of them comes to be sent.
  explicit TopKHook(double ratio, std::uint64_t start_iteration = 0);

  // Throws Error(kInvalidArgument) for a bucket of more than 2^32 elements, too.
  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override;
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override;
  void take_back(const GradBucket::Gradient& gradient) override {
    if (compresses_) errors_.take_back(gradient);  // else nothing of the errors was sent
  }

  // "topk.iterations" (int64) and "error.NAME".
  std::vector<HookTensor> state() override;

 private:
  std::size_t num_sent(const GradBucket& bucket) const;
  std::size_t part_bytes(const GradBucket& bucket) const;

  const double ratio_;
  const std::uint64_t start_iteration_;
  hooks::ErrorFeedback errors_;
  std::vector<std::unique_ptr<CommBuffer>> buffers_;  // by bucket: all ranks' parts
  std::int64_t iterations_ = 0;                       // done, before a checkpoint too
  bool compresses_ = false;                           // in the iteration under way
  std::vector<std::uint32_t> magnitudes_;             // scratch
};

}  // namespace ddprun
