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
// it through the store; NCCL then connects them on a thread of its own. The calling thread's device
// must be options.device.
//
// Throws Error(kTimeout) when init_timeout passed, naming ranks that never came, or ncclGetUniqueId
// where it did not return in half of the time; Error(kPeerLost) naming a rank that gave up; else
// what NCCL said. The other ranks are told, and the process' exit is bounded. NCCL may still be
// inside then: CommMaking::is_any_left_behind().
Comm set_up_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                 store::Store& store, const NcclOptions& options);

}  // namespace ddprun::nccl
