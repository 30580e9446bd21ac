// SPDX-License-Identifier: Apache-2.0
// Parameters that get no gradient in a backward of this rank, and whether another rank has a
// gradient for them. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_sdk/ddp/ddp_rules.h"
#include "worker_sdk/torch/gradient_buckets.h"

namespace ddprun::torch_adapter {

// A backward is mark(), ask(), hear() if wants_answer(), take_back(), settle(). A shadow step of a
// join is ask(), hear(), take_back_shadowed().
class UnusedParameters {
 public:
  // Both must outlive this object.
  UnusedParameters(const WrappedModel& model, GradientBuckets& buckets);

  ParameterUsage& usage() { return usage_; }

  // Removes what an earlier backward that threw has left, before the coming one.
  void forget() { marked_.clear(); }

  // Those that aren't ready contribute their gradient from earlier backwards, or zeros. They keep
  // it until it is known whether another rank uses them.
  void mark(const std::vector<std::size_t>& indices);
  void mark_rest();  // those that the forward reached, but not the loss

  // Returns, for hear(), which parameters any rank has used. Collective if that isn't known, else
  // undefined: kAll never asks, kStatic only once. It doesn't wait.
  at::Tensor ask();
  // If this rank has used all parameters itself, it need not wait for an answer.
  bool wants_answer() const { return !marked_.empty() || usage_.mode() == UsageMode::kStatic; }
  // Takes the answer; waits for the device.
  void hear(const at::Tensor& answer);

  // Gives a hook back the errors that it has sent for parameters that no rank uses now: their
  // averages are not applied.
  void take_back();
  void take_back_shadowed();

  // Gives the marked parameters the average, or the gradient that they had before.
  void settle();

 private:
  void mark_one(std::size_t index);

  struct Marked {
    std::size_t index;
    at::Tensor gradient;  // its gradient before this backward; undefined: it had none
  };

  const WrappedModel& model_;
  GradientBuckets& buckets_;
  ParameterUsage usage_;
  std::vector<std::uint8_t> used_;  // by parameter: by any rank; empty: unknown. kStatic: for good
  std::vector<Marked> marked_;      // in the current backward
};

}  // namespace ddprun::torch_adapter
