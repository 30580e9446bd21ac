// SPDX-License-Identifier: Apache-2.0
// A process with one rank, for tests of things that end the process.
#pragma once

#include <functional>

#include "tests/support/forked_child.h"
#include "tests/worker_sdk/core/nccl/rig.h"

namespace ddprun::test {

// Runs `child` in a process of its own. The rank has not joined yet.
inline ChildEnd run_child(const std::function<void(Rig&, NcclOptions&)>& child) {
  return run_forked([&] {
    // Never destroyed: its checks don't suit a process that ends in the middle.
    Rig* const rig = new Rig;
    NcclOptions options = rig->options(0, 1);
    child(*rig, options);
  });
}

}  // namespace ddprun::test
