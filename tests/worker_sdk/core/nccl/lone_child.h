// SPDX-License-Identifier: Apache-2.0
// A process with one rank, for what ends the process.
#pragma once

#include <functional>

#include "tests/support/forked_child.h"
#include "tests/worker_sdk/core/nccl/rig.h"

namespace ddprun::test {

// Runs `child` in a process of its own; it has yet to join.
inline ChildEnd run_child(const std::function<void(Rig&, NcclOptions&)>& child) {
  return run_forked([&] {
    Rig* const rig = new Rig;  // whose checks are not for a process that is left in the middle
    NcclOptions options = rig->options(0, 1);
    child(*rig, options);
  });
}

}  // namespace ddprun::test
