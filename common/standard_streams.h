// SPDX-License-Identifier: Apache-2.0
// Descriptors 0, 1 and 2 as a program may rely on them.
#pragma once

namespace ddprun {

// Those that are closed become /dev/null; else a socket would get their number, and with it what is
// written for the user. A stdout that was closed still takes nothing (EBADF): an answer that nobody
// can have is not one that was given. First thing in main().
void open_standard_streams();

// False where the descriptor is this process' terminal, and another job is in its foreground: what
// is typed isn't meant for us.
bool is_in_foreground(int fd);

}  // namespace ddprun
