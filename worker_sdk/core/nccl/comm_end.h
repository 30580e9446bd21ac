// SPDX-License-Identifier: Apache-2.0
// Ends the NCCL communicator itself, within a deadline. Nobody is inside it, nor comes in.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"

namespace ddprun::nccl {

// ncclCommAbort. False: it did not return before the deadline, and hung() was called.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline);

// ncclCommDestroy of a healthy one that has nothing under way. False: it did not return before the
// deadline, and is left behind.
bool destroy_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                  Deadline deadline);

// options.on_hung_abort: `what`, a call of NCCL, did not return since `begun`.
void hung(const NcclOptions& options, const std::string& what, Clock::time_point begun);

}  // namespace ddprun::nccl
