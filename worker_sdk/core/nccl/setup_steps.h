// SPDX-License-Identifier: Apache-2.0
// What making an NCCL communicator and splitting one have in common: calls that may hang, and the
// wait until NCCL has ended them, within one deadline.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_options.h"
#include "worker_sdk/core/nccl/peer_board.h"

namespace ddprun::nccl {

// For a request to the store whose answer is there already.
inline constexpr std::chrono::milliseconds kBriefLook{2'000};

// NCCL and CUDA are second owners of themselves: a call may be left behind.
struct Libraries {
  std::shared_ptr<CudaApi> cuda;
  std::shared_ptr<NcclApi> nccl;
};

// `call` on a thread that is left behind where it doesn't return before the deadline: then
// Error(kTimeout), and the process' exit is bounded. It must own all that it touches.
Result call_before(Deadline deadline, const Libraries& libraries, const NcclOptions& options,
                   const std::string& what, std::function<Result(NcclApi&)> call);

// A set-up under way, of options.size ranks.
struct SetUp {
  const NcclOptions& options;
  std::string what;  // "NCCL set-up", for messages
  Deadline deadline;
  std::chrono::milliseconds timeout;  // which made the deadline
  PeerBoard& board;                   // on which its ranks said that they wait in operation 0
  PeerBoard* parent_board = nullptr;  // of a communicator that is split: looked at, too
  const Failure* failure = nullptr;   // of that communicator: ends the wait
};

// Polls until NCCL has ended well what was begun on the gate's communicator. Throws
// Error(kTimeout) naming ranks that never came, Error(kPeerLost) naming one that gave up or because
// the agent says that one has died, else what NCCL said or why `failure` is set. A gate that
// somebody closed ends the wait, too.
void wait_until_ready(const std::shared_ptr<NcclApi>& nccl, const std::shared_ptr<CommGate>& gate,
                      const SetUp& setup);

// Error(kTimeout) that names who never came, or says where to look.
Error timed_out(const SetUp& setup);

}  // namespace ddprun::nccl
