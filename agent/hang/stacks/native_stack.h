// SPDX-License-Identifier: Apache-2.0
// The native stack of a process' main thread. The process is stopped for milliseconds, never by a
// signal, and runs on when this process ends, however it does. Calls that the kernel doesn't
// restart after a stop (epoll_wait, semop, io_getevents: signal(7)) return EINTR in it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddprun::agent {

struct NativeStack {
  std::vector<std::string> frames;  // innermost first: "load_batch(int)", "read (libc.so.6)"
  std::string note;                 // why there are none, or not all
};

// At most `max_frames`. Needs SIGCHLD blocked. One thread of this process at a time.
NativeStack native_stack(pid_t pid, std::size_t max_frames);

}  // namespace ddprun::agent
