// SPDX-License-Identifier: Apache-2.0
// Finds and signals all descendants of this process, whatever session they moved to. A pid is
// signalled only while it can't have been reused: direct children are not reaped meanwhile, deeper
// ones are held by a pidfd and checked again. No C++ library, no allocation.
#pragma once

#include <sys/types.h>

namespace ddprun::agent::warden {

enum class Visit {
  kSignal,  // this process and what is below it
  kPass,    // not this process, but what is below it
  kAlone,   // this process, but not what is below it
  kPrune,   // neither
};
using ChooseProcess = Visit (*)(pid_t pid, void* context);  // `context` is the caller's

// Sends `signal_number` once to every descendant of this process that existed during the whole call
// and that `choose` (null: all) wants. Returns how many were signalled. A process born meanwhile
// may be missed: call again until wait(2) says ECHILD (this process must be a child subreaper, so
// that what loses its parent becomes a child here). Nobody else may reap children during the call.
int signal_descendants(int signal_number, ChooseProcess choose, void* context);

// False also where there is no such process.
bool ignores_signal(pid_t pid, int signal_number);
// Likewise: it has a handler for it.
bool handles_signal(pid_t pid, int signal_number);

}  // namespace ddprun::agent::warden
