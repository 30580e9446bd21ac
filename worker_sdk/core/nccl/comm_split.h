// SPDX-License-Identifier: Apache-2.0
// Makes the NCCL communicator of a group of a communicator's ranks, within a deadline.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_options.h"
#include "worker_sdk/core/nccl/setup_steps.h"

namespace ddprun::nccl {

// The communicator that is split. Its gate is closed to all others meanwhile.
struct SplitParent {
  const NcclOptions& options;
  std::shared_ptr<CommGate> gate;    // second owner: the call that splits, which may be left behind
  std::shared_ptr<Failure> failure;  // ends the split, too
};

struct SplitPart {
  std::string name;    // of the groups
  std::string prefix;  // of the keys of this split, which all ranks of the parent share
  int color = 0;       // the group's smallest rank of the parent: no other group has it
  int key = 0;         // this rank's place in the group
  std::chrono::milliseconds timeout{};
};

// Collective over the parent's ranks; one store request, and one each peer_check_interval after
// the first. The calling thread's device must be the parent's.
//
// Throws Error(kTimeout) when part.timeout passed, naming ranks of the parent that never came;
// Error(kPeerLost) naming a rank that gave up; else what NCCL said, or why the parent failed. The
// other ranks are told. The parent can't be used any more then: NCCL may still be inside it.
Comm split_comm(const Libraries& libraries, store::Store& store, const SplitParent& parent,
                const SplitPart& part);

}  // namespace ddprun::nccl
