// SPDX-License-Identifier: Apache-2.0
// A communication hook's state (CommHook::state()), for a Checkpoint. Heavy: includes ATen.
#pragma once

#include <vector>

#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/torch/checkpoint.h"

namespace ddprun {

// Returns tensors over the hook's own memory, named "hook.…", for Checkpoint::load(). Call it after
// the hook was registered and between iterations. They must not outlive the hook.
std::vector<NamedTensor> hook_tensors(CommHook& hook);

// Returns tensors of the same names for Checkpoint::save(). A tensor that differs between ranks is
// the ranks' mean, in a copy; so the state fits any later number of ranks. Collective.
std::vector<NamedTensor> hook_tensors_to_save(CommHook& hook, Communicator& communicator);

}  // namespace ddprun
