// SPDX-License-Identifier: Apache-2.0
// What a process waits in, from /proc: its main thread's system call, with the file behind the
// descriptor, and the kernel's function. Reads only; works for a process in state D, too.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace ddprun::agent {

struct WaitingPlace {
  std::string call;   // "read() of /data/part-07", "futex()"; empty: it runs, or isn't known
  std::string wchan;  // "pipe_read"; empty: it runs, or the kernel doesn't say
  // A look at its stack interrupted the call, and the kernel has forgotten which one goes on.
  bool resumed = false;
};

WaitingPlace waiting_place(pid_t pid);

// The process to look at for a worker: itself, or where it only waits for one child (a shell's
// program), that child's …
pid_t process_at_work(pid_t worker);

// A line of /proc/PID/syscall: "0 0x3 0x7f…" (number and arguments), "running", "-1 0x… 0x…".
std::string describe_call(std::string_view line, pid_t pid);

}  // namespace ddprun::agent
