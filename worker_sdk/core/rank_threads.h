// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, each with a session and a communicator of its own
// (docs/local-sgd.md, "Replicas as threads").
#pragma once

#include <functional>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/session.h"

namespace ddprun {

struct RankThreadOptions {
  BackendChoice backend = BackendChoice::kAuto;  // kNccl and kAuto: thread r has GPU r
  CommunicatorOptions communicator{};
  NcclLoader nccl_loader = load_nccl_libraries;  // called by each thread
};

// Runs `body` in `num_ranks` threads and returns when all have returned. They meet at a store of
// this process (LocalStore); host communicators among them move data through memory that they
// share. They also share what LibTorch has once per process, for example the CPU's random
// generator.
//
// If a body throws, the other ranks' operations end with kPeerLost. This call rethrows the first
// exception. Throws Error(kInvalidArgument) for fewer than one rank, and within a job (RANK is
// set): each rank of a launcher is a process already.
void run_rank_threads(int num_ranks,
                      const std::function<void(Session& session, Communicator& communicator)>& body,
                      const RankThreadOptions& options = {});

}  // namespace ddprun
