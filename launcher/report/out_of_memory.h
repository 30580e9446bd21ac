// SPDX-License-Identifier: Apache-2.0
// Whether a worker failed because memory ran out, of the machine or of a GPU. Pure.
#pragma once

#include <string>

#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

// What its node knows of the kernel's OOM killer; else "ran out: " and the last exception that the
// worker named, in its error file or its last lines, if that is one of want of memory
// (torch.OutOfMemoryError, MemoryError, std::bad_alloc, …). Empty: nothing says so.
std::string out_of_memory(const membership::WorkerFailure& failure);

}  // namespace ddprun::launcher
