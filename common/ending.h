// SPDX-License-Identifier: Apache-2.0
// What a program of ours says and exits with that an exception ends.
#pragma once

#include <exception>
#include <string>

#include "common/error.h"
#include "common/exit_codes.h"

namespace ddprun {

// A file that was asked for can't be written: its disk is full, or it isn't allowed. Of code
// kSystem; a program that it ends says so by its exit code.
class WriteError : public Error {
 public:
  explicit WriteError(const std::string& message) : Error(ErrorCode::kSystem, message) {}
};

struct Ending {
  std::string text;  // what happened, and what to do about it
  ExitCode code;
};

// Of an Error its own words and exit_code_for(), of a WriteError kOutputLost; of a descriptor that
// Asio could not have the limit and who raises it, kUsage; of all else an internal error,
// kInternal.
Ending ending_by(const std::exception& error);

}  // namespace ddprun
