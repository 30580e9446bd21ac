// SPDX-License-Identifier: Apache-2.0
// Turns one kSpawn request into a process that is about to exec. Warden only; no C++ library.
#pragma once

#include <sys/types.h>

#include "agent/warden/protocol.h"

namespace ddprun::agent::warden {

// What the child writes to its pipe when it could not exec.
struct SpawnError {
  int error_number;
  Stage stage;
};

// Where it begins.
struct SpawnCgroup {
  int fd = -1;           // −1: in the warden's
  bool is_must = false;  // nowhere else: it has the worker's limits
};

struct SpawnResult {
  pid_t pid = -1;    // −1: see `error`
  int exec_fd = -1;  // readable when the exec is decided: end of file = it runs, else a SpawnError
  SpawnError error{0, Stage::kNone};
};

// Forks, which is cheap from so small a process and, other than vfork, lets several execs go on at
// once and none hold up the warden (an exec from a dead file server hangs). The child gets its own
// session, dies with the warden, has default signals, an empty mask and only the three descriptors.
// `fds` (payload, stdin, stdout, stderr) stay the caller's.
SpawnResult spawn_worker(const Request& request, const int (&fds)[kNumSpawnFds],
                         const SpawnCgroup& cgroup);

}  // namespace ddprun::agent::warden
