// SPDX-License-Identifier: Apache-2.0
// What a checkpoint comes to on one rank, all ranks come to: a result, or the same Error.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "worker_sdk/core/communicator.h"

namespace ddprun::torch_adapter {

// Both are collective and throw the communicator's errors, too. What isn't an Error becomes one:
// kResourceExhausted where memory is short, else kSystem. `device`: where the communicator wants
// buffers.

// `act` is done on rank 0 alone; every rank returns what it returned, or throws what it threw.
std::string on_rank_zero(Communicator& communicator, c10::Device device,
                         const std::function<std::string()>& act);

// `act` is done on every rank; every rank throws what the first that has an error threw, its
// message cut to 1 KiB.
void on_every_rank(Communicator& communicator, c10::Device device,
                   const std::function<void()>& act);

}  // namespace ddprun::torch_adapter
