// SPDX-License-Identifier: Apache-2.0
// The functions for a build without libdw's headers.
#include "agent/hang/stacks/stacks.h"

namespace ddprun::agent {

void load_native_stacks() {}

void native_stacks(const std::vector<pid_t>& pids, std::size_t,
                   const std::function<void(pid_t, const NativeStack&)>& found) {
  const NativeStack none{{}, "no native stack: ddprun was built without libdw"};
  for (const pid_t pid : pids) found(pid, none);
}

}  // namespace ddprun::agent
