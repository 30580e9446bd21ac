// SPDX-License-Identifier: Apache-2.0
// The communicator of a job with one worker: needs no launcher, store, thread or shared memory.
#pragma once

#include <memory>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// Rank 0 of 1. Every operation is complete when the call returns; send() and recv() throw
// Error(kInvalidArgument) outside of group(), for there is no peer. allocate() gives host memory.
// Operations take host memory. A sum over one rank doesn't read its buffer, so that may be memory
// of any device.
std::unique_ptr<Communicator> make_solo_communicator();

}  // namespace ddprun
