// SPDX-License-Identifier: Apache-2.0
// Ends the NCCL communicator itself, within a deadline.
#pragma once

#include <memory>

#include "common/clock.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"

namespace ddprun::nccl {

// ncclCommAbort, also of what a split that had not ended has half made, before the deadline; then
// whoever is still inside `gate`, which has been closed, has to leave NCCL before it, too, or in
// leaving_time() where that is later. Else options.on_hung_abort. False: it hangs.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, CommGate& gate,
                const NcclOptions& options, Deadline deadline);

// What a call that an abort has freed gets at least to come back: a quarter of the shorter one of
// abort_timeout and destroy_timeout.
std::chrono::milliseconds leaving_time(const NcclOptions& options);

// Flushes and frees a healthy communicator in which nobody is; aborts it where flushing takes until
// `flushed` (a peer is gone or still has operations that it needs us for). Either ends within
// destroy_timeout after that. False: it hangs.
bool finish_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                 Deadline flushed);

}  // namespace ddprun::nccl
