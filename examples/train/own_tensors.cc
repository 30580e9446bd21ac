// SPDX-License-Identifier: Apache-2.0
#include "examples/train/own_tensors.h"

#include <algorithm>

namespace ddprun::train {

OwnTensors::OwnTensors(const Options& options, const std::vector<std::string>& buffers)
    : names_(options.ignore_parameters) {
  if (!options.broadcast_buffers) names_.insert(names_.end(), buffers.begin(), buffers.end());
}

bool OwnTensors::has(std::string_view name) const {
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& own) {
    return name == own || name.find("." + own + ".") != name.npos;
  });
}

}  // namespace ddprun::train
