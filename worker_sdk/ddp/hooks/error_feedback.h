// SPDX-License-Identifier: Apache-2.0
// What compression left out of this rank's gradients, kept for the next iteration (Seide et al.,
// "1-bit stochastic gradient descent", Interspeech 2014). Kept by parameter, so that it outlives
// the rebuild of the buckets.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun::hooks {

class ErrorFeedback {
 public:
  // Zeros for the gradient, or for all of the bucket, unless they are there already. Throws
  // Error(kInvalidArgument) where a known one has another size: a hook serves one model.
  void prepare(const GradBucket& bucket);
  void prepare(const GradBucket::Gradient& gradient);

  // bucket += errors; those of gradients without one are 0.
  void add_to(const GradBucket& bucket) const;

  // errors = what is in the bucket now; 0 for what is not finite.
  void take_from(const GradBucket& bucket);

  // errors += gradient, but for what is not finite. One without an error is left out.
  void take_back(const GradBucket::Gradient& gradient);

  // Of a gradient that was prepared.
  float* of(const GradBucket::Gradient& gradient);

  // "error.NAME", per rank.
  void append_state(std::vector<HookTensor>& state);

 private:
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::size_t, Entry> entries_;  // by parameter
};

}  // namespace ddprun::hooks
