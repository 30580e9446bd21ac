// SPDX-License-Identifier: Apache-2.0
// Ranks on this machine from inside a program, without the launcher (docs/spawn.md).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace ddprun {

struct SpawnOptions {
  // Between SIGTERM and SIGKILL, for the ranks that are left when one has failed.
  std::chrono::milliseconds grace{10'000};
  // More variables for the ranks; those of a rank's place (RANK, …) can't be among them.
  std::map<std::string, std::string> environment{};
};

// Runs `function` in `num_ranks` new processes, with its rank, and returns when all have returned.
// Each is this program started anew (exec of /proc/self/exe) with the same arguments. Whatever
// main() does before this call is done in every rank, too. The call itself never returns there: the
// rank ends with exit code 0, or with 1 when `function` throws. So main() has to come here in the
// same way each time. If a program has several calls, a rank passes over those before its own. A
// rank has its place in the environment, for Session::from_env(): node 0 of 1, a store that this
// call serves. OMP_NUM_THREADS is 1 if it is not set and there are several ranks. It shares stdin,
// stdout, stderr and process group.
//
// SIGINT and SIGTERM end the ranks first as long as it lasts. Then they have the effect on this
// process that they had before the call. The ranks can't outlive the calling thread.
//
// The first rank that fails ends the others. Throws Error that names it: its message with its code
// if it threw Error, else kPeerLost with exit code or signal. Error(kInvalidArgument): fewer than
// one rank, or called in a rank, or in a job of a launcher. Error(kAborted): a signal, if the
// program has a handler that returned. One call at a time.
void spawn(const std::function<void(int rank)>& function, int num_ranks,
           const SpawnOptions& options = {});

}  // namespace ddprun
