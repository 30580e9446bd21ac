// SPDX-License-Identifier: Apache-2.0
// Parameters that get no gradient in a backward of this rank, and whether another rank has one for
// them. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_sdk/ddp/ddp_rules.h"
#include "worker_sdk/torch/gradient_buckets.h"

namespace ddprun::torch_adapter {

// A backward: mark(), ask(), hear() where wants_answer(), take_back(), settle(). A shadow step of a
// join: ask(), hear(), take_back_shadowed().
class UnusedParameters {
 public:
  // Both must outlive this object.
  UnusedParameters(const WrappedModel& model, GradientBuckets& buckets);

  ParameterUsage& usage() { return usage_; }

  // The coming backward begins anew, whatever one before that threw has left.
  void forget() { marked_.clear(); }

  // Those that aren't ready contribute their gradient from earlier backwards, or zeros. They keep
  // it until it is known whether another rank uses them.
  void mark(const std::vector<std::size_t>& indices);
  void mark_rest();  // reached by the forward, but not by the loss

  // Which parameters any rank has used, for hear(). Collective where it isn't known, else
  // undefined: kAll needs not know, kStatic only once. Nobody waits here.
  at::Tensor ask();
  // If this rank has used all parameters itself, it need not wait for an answer.
  bool wants_answer() const { return !marked_.empty() || usage_.mode() == UsageMode::kStatic; }
  // Waits for the device.
  void hear(const at::Tensor& answer);

  // Gives a hook back what it had kept and has sent for parameters that nobody uses now: their
  // averages are not applied.
  void take_back();
  void take_back_shadowed();

  // The parameters that were marked have the average, or the gradient they had.
  void settle();

 private:
  void mark_one(std::size_t index);

  struct Marked {
    std::size_t index;
    at::Tensor gradient;  // what it was before this backward; undefined where there was none
  };

  const WrappedModel& model_;
  GradientBuckets& buckets_;
  ParameterUsage usage_;
  std::vector<std::uint8_t>
      used_;                    // on any rank, by parameter; empty: not known. kStatic: for good
  std::vector<Marked> marked_;  // in the current backward
};

}  // namespace ddprun::torch_adapter
