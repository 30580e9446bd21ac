// SPDX-License-Identifier: Apache-2.0
// What a program was asked to print in place of its work: --help, --version, --print-man.
#pragma once

#include <string>

namespace ddprun {

// Writes all of it to stdout; SIGPIPE must be ignored. Returns the exit status: 0, also where the
// reader has had enough ("| head"), or ExitCode::kOutputLost after one line of `program` on stderr.
int print_what_was_asked(const char* program, const std::string& text);

}  // namespace ddprun
