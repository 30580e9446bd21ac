// SPDX-License-Identifier: Apache-2.0
// The message and exit code of a ddprun program that an exception ends.
#pragma once

#include <exception>
#include <string>

#include "common/error.h"
#include "common/exit_codes.h"

namespace ddprun {

// An output file can't be written: its disk is full, or permission is missing. Its code is kSystem;
// a program that it ends exits with kOutputLost.
class WriteError : public Error {
 public:
  explicit WriteError(const std::string& message) : Error(ErrorCode::kSystem, message) {}
};

struct Ending {
  std::string text;  // what happened, and what to do about it
  ExitCode code;
};

// Error: its own text and exit_code_for(). WriteError: its own text and kOutputLost. Asio without a
// free descriptor: the limit, how to raise it, and kUsage. Anything else: an internal error and
// kInternal.
Ending ending_by(const std::exception& error);

}  // namespace ddprun
