// SPDX-License-Identifier: Apache-2.0
// Which tensors of a training each rank has for itself: those of --ignore-parameters, and the
// buffers with --no-broadcast-buffers. Pure: no I/O, clock or thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "examples/train/options.h"

namespace ddprun::train {

class OwnTensors {
 public:
  // `buffers`: the names of the net's.
  OwnTensors(const Options& options, const std::vector<std::string>& buffers);

  // `name`: a parameter's, a buffer's, or of an optimiser's state "OPTIMISER.PARAMETER.WHAT".
  bool has(std::string_view name) const;

  bool empty() const { return names_.empty(); }

 private:
  std::vector<std::string> names_;
};

}  // namespace ddprun::train
