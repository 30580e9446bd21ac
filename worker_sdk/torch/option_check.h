// SPDX-License-Identifier: Apache-2.0
// What a class of the SDK refuses among what it is given.
#pragma once

#include <string>

#include "common/error.h"

namespace ddprun::torch_adapter {

// Throws Error(kInvalidArgument) "WHO: WHAT" unless it holds.
inline void require(bool holds, const std::string& who, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, who + ": " + what);
}

}  // namespace ddprun::torch_adapter
