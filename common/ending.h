// SPDX-License-Identifier: Apache-2.0
// What a program of ours says and exits with that an exception ends.
#pragma once

#include <exception>
#include <string>

#include "common/exit_codes.h"

namespace ddprun {

struct Ending {
  std::string text;  // what happened, and what to do about it
  ExitCode code;
};

// Of an Error its own words and exit_code_for(), of a WriteError kOutputLost; of a descriptor that
// Asio could not have the limit and who raises it, kUsage; of all else an internal error,
// kInternal.
Ending ending_by(const std::exception& error);

}  // namespace ddprun
