// SPDX-License-Identifier: Apache-2.0
// A file that was asked for can't be written: its disk is full, or it isn't allowed.
#pragma once

#include <string>

#include "common/error.h"

namespace ddprun {

// Of code kSystem; a program that it ends says so by its exit code (ending.h).
class WriteError : public Error {
 public:
  explicit WriteError(const std::string& message) : Error(ErrorCode::kSystem, message) {}
};

}  // namespace ddprun
