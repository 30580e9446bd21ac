// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/parameter_usage.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun {

ParameterUsage::ParameterUsage(UsageMode mode, std::vector<std::string> names)
    : mode_(mode),
      names_(std::move(names)),
      used_(names_.size(), 0),
      counts_(names_.size(), 0),
      last_times_(names_.size(), 0) {}

bool ParameterUsage::on_gradient(std::size_t index) {
  DDPRUN_CHECK(index < names_.size());
  used_[index] = 1;
  ++counts_[index];
  last_times_[index] = ++num_gradients_;
  if (mode_ != UsageMode::kStatic) return true;
  if (!learned_) return false;
  if (counts_[index] > expected_[index]) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("the graph has changed: ", names_[index], " got ", counts_[index],
                       " gradients in this iteration and ", expected_[index],
                       " in the first: DdpOptions::static_graph is for models that do the same in "
                       "each iteration; use find_unused_parameters for others"));
  }
  return counts_[index] == expected_[index];
}

std::vector<std::size_t> ParameterUsage::learn() {
  DDPRUN_CHECK(learning());
  std::vector<std::size_t> order;
  unused_.clear();
  for (std::size_t index = 0; index < names_.size(); ++index) {
    (counts_[index] > 0 ? order : unused_).push_back(index);
  }
  std::sort(order.begin(), order.end(),
            [this](std::size_t a, std::size_t b) { return last_times_[a] < last_times_[b]; });
  expected_ = counts_;
  learned_ = true;
  return order;
}

std::string ParameterUsage::advice() const {
  if (mode_ == UsageMode::kStatic) {
    return "the graph has changed, for they got one in the first iteration: "
           "DdpOptions::static_graph is for models that do the same in each iteration; use "
           "find_unused_parameters for others";
  }
  return "every parameter must take part in the loss, or be frozen with requires_grad_(false) "
         "before it is wrapped; or set DdpOptions::find_unused_parameters";
}

void ParameterUsage::end_iteration() {
  if (mode_ == UsageMode::kFindUnused) unused_.clear();
  std::fill(used_.begin(), used_.end(), std::uint8_t{0});
  std::fill(counts_.begin(), counts_.end(), std::size_t{0});
  num_gradients_ = 0;
}

}  // namespace ddprun
