// SPDX-License-Identifier: Apache-2.0
// Descriptors 0, 1 and 2 as a program may rely on them.
#pragma once

#include <string>
#include <string_view>

#include "common/log_level.h"

namespace ddprun {

// Standard streams that are closed become /dev/null; else a socket would get their number, and with
// it what is written for the user. First thing in main().
void open_standard_streams();

// To be called before that. A job's output may go nowhere, and workers have a descriptor that they
// can write to. But an answer without a stdout was not given (EBADF).
bool was_stdout_closed();

// False where the descriptor is this process' terminal, and another job is in its foreground: what
// is typed isn't meant for us.
bool is_in_foreground(int fd);

// Answers on stdout: what a program was asked to print in place of its work (--help, --version,
// --print-man), and what a command says. Writes all of it. errno of what went wrong; 0: nothing.
// EBADF also where there was no stdout when the program began.
int write_stdout(const std::string& text);

// The same; SIGPIPE must be ignored. Returns the exit status: 0, also where the reader has had
// enough ("| head"), or ExitCode::kOutputLost after one line of `program` on stderr.
int print_what_was_asked(const char* program, const std::string& text);

// Priorities of log lines in systemd's journal, as sd-daemon(3) has them: a line on stderr that
// begins with "<4>" is a warning.
//
// Whether stderr is the stream of the journal that JOURNAL_STREAM names (device:inode). False: it
// was redirected since, or never was one. Found out at the first call.
bool stderr_is_journal();

// Prefix of a line of this level: "<3>" to "<7>" where stderr is the journal's, else "".
std::string_view journal_prefix(LogLevel level);

}  // namespace ddprun
