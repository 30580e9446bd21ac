// SPDX-License-Identifier: Apache-2.0
// Makes and ends the NCCL communicator itself, each within a deadline.
#pragma once

#include <memory>

#include "common/clock.h"
#include "rendezvous/store/store.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"

namespace ddprun::nccl {

// Collective. Rank 0 (above max_ranks_per_root: several roots) makes a fresh unique id and shares
// it through the store; then NCCL's non-blocking init is polled until it ends. The calling thread's
// device must be options.device.
//
// Throws Error(kTimeout) when init_timeout passed, naming ranks that never came; Error(kPeerLost)
// naming a rank that gave up; Error(kUnsupported) for more ranks than the library can connect;
// else what NCCL said. The half-made communicator is aborted then, and the other ranks are told.
Comm set_up_comm(const std::shared_ptr<NcclApi>& nccl, store::Store& store,
                 const NcclOptions& options);

// Waits while NCCL says kInProgress. kInProgress: the deadline passed.
Result poll_until_settled(NcclApi& nccl, Comm comm, Deadline deadline);

// ncclCommAbort before the deadline, else options.on_hung_abort. False: it hangs.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline);

// Flushes and frees a healthy communicator; aborts it where flushing takes longer than
// abort_timeout (a peer is gone or still has operations that it needs us for). Either ends within
// destroy_timeout after that. False: it hangs.
bool finish_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options);

}  // namespace ddprun::nccl
