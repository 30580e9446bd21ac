// SPDX-License-Identifier: Apache-2.0
// Throws an Error whose message is made of parts, as concat() makes a text.
#pragma once

#include "common/error.h"
#include "common/text.h"

namespace ddprun {

template <typename... Parts>
[[noreturn]] void throw_error(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

// The same with ErrorCode::kInvalidArgument: the caller's or the user's input is wrong.
template <typename... Parts>
[[noreturn]] void throw_invalid(const Parts&... parts) {
  throw_error(ErrorCode::kInvalidArgument, parts...);
}

}  // namespace ddprun
