// SPDX-License-Identifier: Apache-2.0
// Makes descriptors 0, 1 and 2 reliable for a program.
#pragma once

#include <string>
#include <string_view>

#include "common/log_level.h"

namespace ddprun {

// Opens closed standard streams as /dev/null. Otherwise a socket would get their number, and with
// it the output for the user. Ignores SIGPIPE and SIGXFSZ: a write without a reader, or beyond the
// limit of file sizes, then fails with an error. Must be called first in main().
void open_standard_streams();

// Whether stdout was closed before that call. A job's output may go nowhere, and its workers have a
// descriptor that they can write to. But without a stdout an answer to the user is lost (EBADF).
bool was_stdout_closed();

// False if the descriptor is this process' terminal and another job is in its foreground: what is
// typed is for that job.
bool is_in_foreground(int fd);

// Writes all of an answer to stdout: what a program prints in place of its work (--help, --version,
// --print-man), and what a command says. Returns errno; 0: all is written. EBADF also if there was
// no stdout when the program began.
int write_stdout(const std::string& text);

// Does the same; SIGPIPE must be ignored. Returns the exit status: 0, also if the reader has
// stopped reading ("| head"), or ExitCode::kOutputLost after one line of `program` on stderr.
int print_what_was_asked(const char* program, const std::string& text);

// The priorities of log lines in systemd's journal are those of sd-daemon(3): a line on stderr that
// begins with "<4>" is a warning.
//
// Whether stderr is the stream of the journal that JOURNAL_STREAM names (device:inode). False: it
// was redirected since, or never was one. The first call finds it out.
bool stderr_is_journal();

// Returns the prefix of a line of this level: "<3>" to "<7>" if stderr is the journal's, else "".
std::string_view journal_prefix(LogLevel level);

}  // namespace ddprun
