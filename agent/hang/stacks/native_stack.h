// SPDX-License-Identifier: Apache-2.0
// The native stacks of processes' main threads. A process is stopped only while its registers and
// its stack are copied (stack_snapshot.h); the program files, which may be where everything hangs,
// are read afterwards.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ddprun::agent {

struct NativeStack {
  std::vector<std::string> frames;  // innermost first: "load_batch(int)", "read (libc.so.6)"
  std::string note;                 // why there are none, or not all
};

// Calls `found` for each of `pids`, in their order, as soon as it is known; at most `max_frames`
// each. May get stuck where a program's files can't be read. Needs SIGCHLD blocked, and its default
// action. One thread of this process at a time.
void native_stacks(const std::vector<pid_t>& pids, std::size_t max_frames,
                   const std::function<void(pid_t, const NativeStack&)>& found);

}  // namespace ddprun::agent
