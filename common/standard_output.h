// SPDX-License-Identifier: Apache-2.0
// Answers on stdout: what a program was asked to print in place of its work (--help, --version,
// --print-man), and what a command says.
#pragma once

#include <string>

namespace ddprun {

// Writes all of it to stdout. errno of what went wrong; 0: nothing. EBADF also where there was no
// stdout when the program began (standard_streams.h).
int write_stdout(const std::string& text);

// Writes all of it to stdout; SIGPIPE must be ignored. Returns the exit status: 0, also where the
// reader has had enough ("| head"), or ExitCode::kOutputLost after one line of `program` on stderr.
int print_what_was_asked(const char* program, const std::string& text);

}  // namespace ddprun
