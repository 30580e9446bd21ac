// SPDX-License-Identifier: Apache-2.0
// Exit statuses of ddprun and ddprund. Documented in docs/exit-codes.md.
#pragma once

#include "common/error.h"

namespace ddprun {

enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,                   // Bad flag, bad configuration, program not found.
  kRendezvousUnreachable = 69,  // Nobody answered at the endpoint, or it went away for good.
  kInternal = 70,               // A fault of ddprun's own, or out of memory: please report.
  kOutputLost = 74,             // Requested output (--help, a file, …) could not be written.
  kRetryable = 75,              // Preempted or a node was lost: the same command may succeed.
  kNoProgress = 76,             // Restarts brought no progress: don't requeue.
  kTimeLimit = 124,             // A worker hung, or the job's time limit was reached.
  // Any other status is the first failing worker's own code, or 128 + signal.
};

// A worker's exit codes if its program could not be executed, as in shells.
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// Returns the exit code of a program that an Error ends before its work begins. It is kUsage if the
// user can fix the error (a bad value, a port in use, a limit), else the cause's own code.
ExitCode exit_code_for(ErrorCode code);

// Returns the exit status for a process that a signal ended.
constexpr int exit_status_for_signal(int signal_number) { return 128 + signal_number; }

}  // namespace ddprun
