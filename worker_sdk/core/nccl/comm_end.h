// SPDX-License-Identifier: Apache-2.0
// Ends the NCCL communicator itself, within a deadline. Nobody is inside it, nor comes in.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"

namespace ddprun::nccl {

// ncclCommAbort. False: it did not return before the deadline, and hung() was called. `has_graphs`:
// it is left behind instead, for it waits until the program has destroyed its CUDA graphs. What
// NCCL has on the device ends all the same.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline, bool has_graphs = false);

// ncclCommDestroy of a healthy one that has nothing under way. False: it did not return before the
// deadline, and is left behind: it waits for CUDA graphs, too.
bool destroy_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                  Deadline deadline);

// options.on_hung_abort: `what`, a call of NCCL, did not return since `begun`.
void hung(const NcclOptions& options, const std::string& what, Clock::time_point begun);

}  // namespace ddprun::nccl
