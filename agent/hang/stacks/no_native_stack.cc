// SPDX-License-Identifier: Apache-2.0
// Where the build has no libdw.
#include "agent/hang/stacks/native_stack.h"

namespace ddprun::agent {

NativeStack native_stack(pid_t, std::size_t) {
  return {{}, "no native stack: ddprun was built without libdw"};
}

}  // namespace ddprun::agent
