// SPDX-License-Identifier: Apache-2.0
// Ranks on this machine from inside a program, without the launcher (docs/spawn.md).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace ddprun {

struct SpawnOptions {
  // Time between SIGTERM and SIGKILL for the ranks that are left when one has failed.
  std::chrono::milliseconds grace{10'000};
  // More variables for the ranks. Those of a rank's place (RANK, …) are refused.
  std::map<std::string, std::string> environment{};
};

// Runs `function`, with its rank, in `num_ranks` new processes, and returns when all have returned.
// Each is this program started anew (exec of /proc/self/exe) with the same arguments. Whatever
// main() does before this call is done in every rank, too. The call itself never returns there: the
// rank ends with exit code 0, or with 1 when `function` throws. So main() must reach this call in
// the same way each time. If a program has several calls, a rank skips those before its own. A
// rank's environment has its place for Session::from_env(): node 0 of 1, a store that this call
// serves. OMP_NUM_THREADS is 1 if it is not set and there are several ranks. Ranks share stdin,
// stdout, stderr and the process group.
//
// While the call lasts, SIGINT and SIGTERM first end the ranks. Then they have the effect on this
// process that they had before the call. The ranks can't outlive the calling thread.
//
// The first rank that fails ends the others. Throws Error that names it: with its message and code
// if it threw Error, else kPeerLost with exit code or signal. Throws Error(kInvalidArgument) for
// fewer than one rank, and if called in a rank or in a job of a launcher. Throws Error(kAborted)
// after a signal, if the program has a handler that returned. One call at a time.
void spawn(const std::function<void(int rank)>& function, int num_ranks,
           const SpawnOptions& options = {});

}  // namespace ddprun
