// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/error.h"

namespace ddprun::hooks {

void ErrorFeedback::prepare(const GradBucket& bucket) {
  for (const GradBucket::Gradient& gradient : bucket.gradients) prepare(gradient);
}

void ErrorFeedback::prepare(const GradBucket::Gradient& gradient) {
  const auto [place, is_new] = entries_.try_emplace(gradient.parameter);
  Entry& entry = place->second;
  if (is_new) {
    entry = {gradient.name, gradient.shape, std::vector<float>(gradient.view.count)};
  } else if (entry.name != gradient.name || entry.values.size() != gradient.view.count) {
    throw Error(ErrorCode::kInvalidArgument, "this hook has the gradients of another model (" +
                                                 entry.name + "): make one for each");
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

}  // namespace ddprun::hooks
