// SPDX-License-Identifier: Apache-2.0
// Makes the NCCL communicator itself, or that of a group of a communicator's ranks, within a
// deadline. A call shares ownership of NCCL and CUDA, for it may be left behind.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"

namespace ddprun::nccl {

// Collective. Rank 0 (above max_ranks_per_root: several roots) makes a fresh unique id and shares
// it through the store. NCCL then connects them on a thread of its own. The calling thread's device
// must be options.device.
//
// Throws Error(kTimeout) when init_timeout has passed, naming ranks that never came, or
// ncclGetUniqueId if it did not return in half of the time. Throws Error(kPeerLost) naming a rank
// that gave up; else what NCCL said. The other ranks are told, and the process' exit is bounded.
// NCCL may then still be inside a call: is_any_comm_left_behind().
Comm set_up_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                 store::Store& store, const NcclOptions& options);

// The communicator that is split. Its gate is closed to all other callers meanwhile.
struct SplitParent {
  const NcclOptions& options;
  std::shared_ptr<CommGate> gate;    // shared with the call that splits, which may be left behind
  std::shared_ptr<Failure> failure;  // its failure ends the split, too
};

struct SplitPart {
  std::string name;    // the groups' name
  std::string prefix;  // starts the keys of this split, which all ranks of the parent share
  int color = 0;       // the group's smallest rank of the parent: no other group has it
  int key = 0;         // this rank's place in the group
  std::chrono::milliseconds timeout{};
};

// Collective over the parent's ranks. It makes one store request, then a few each
// peer_check_interval. The calling thread's device must be the parent's.
//
// Throws Error(kTimeout) when part.timeout has passed, naming ranks of the parent that never came.
// Throws Error(kPeerLost) naming a rank that gave up; else what NCCL said, or why the parent
// failed. The other ranks are told. The parent is then unusable: NCCL may still be inside it.
Comm split_comm(const std::shared_ptr<CudaApi>& cuda, const std::shared_ptr<NcclApi>& nccl,
                store::Store& store, const SplitParent& parent, const SplitPart& part);

// Returns whether a call of this process was left behind and has not returned. NCCL spins in it, so
// the process must not make another communicator.
bool is_any_comm_left_behind();

}  // namespace ddprun::nccl
