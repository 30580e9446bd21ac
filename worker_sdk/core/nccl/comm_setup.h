// SPDX-License-Identifier: Apache-2.0
// Makes the NCCL communicator itself, within a deadline.
#pragma once

#include <memory>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"

namespace ddprun::nccl {

// Collective. Rank 0 (above max_ranks_per_root: several roots) makes a fresh unique id and shares
// it through the store; then NCCL's non-blocking init is polled until it ends. The calling thread's
// device must be options.device.
//
// Throws Error(kTimeout) when init_timeout passed, naming ranks that never came, or a
// call of NCCL that did not return (ncclGetUniqueId: half of the time); Error(kPeerLost) naming a
// rank that gave up; Error(kUnsupported) for more ranks than the library can connect;
// else what NCCL said. The half-made communicator is aborted then, and the other ranks are told.
Comm set_up_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                 store::Store& store, const NcclOptions& options);

}  // namespace ddprun::nccl
