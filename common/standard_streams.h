// SPDX-License-Identifier: Apache-2.0
// Descriptors 0, 1 and 2 as a program may rely on them.
#pragma once

namespace ddprun {

// Those that are closed become /dev/null; else a socket would get their number, and with it what is
// written for the user. First thing in main().
void open_standard_streams();

// Before that. A job's output may go nowhere, and workers have a descriptor that they can write to;
// but an answer for which there is no stdout is none that was given (EBADF).
bool was_stdout_closed();

// False where the descriptor is this process' terminal, and another job is in its foreground: what
// is typed isn't meant for us.
bool is_in_foreground(int fd);

}  // namespace ddprun
