// SPDX-License-Identifier: Apache-2.0
// A communication hook's state (CommHook::state()), for a Checkpoint. Heavy: includes ATen.
#pragma once

#include <vector>

#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/torch/checkpoint.h"

namespace ddprun {

// Tensors over the hook's own memory, named "hook.…": for Checkpoint::load(), after the hook was
// registered and between iterations. They must not outlive the hook.
std::vector<NamedTensor> hook_tensors(CommHook& hook);

// For Checkpoint::save(): the same names; what each rank has of its own is the ranks' mean, in
// copies. So the ranks that go on, of whatever number, keep together what these did. Collective.
std::vector<NamedTensor> hook_tensors_to_save(CommHook& hook, Communicator& communicator);

}  // namespace ddprun
