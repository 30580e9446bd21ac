// SPDX-License-Identifier: Apache-2.0
// Chooses the message and the exit code when an exception ends a ddprun program.
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
// free descriptor: the limit, how to raise it, and kUsage. Any other exception: an internal error
// and kInternal.
Ending ending_by(const std::exception& error);

}  // namespace ddprun
