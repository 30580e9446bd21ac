// SPDX-License-Identifier: Apache-2.0
// What making an NCCL communicator and splitting one have in common: a blocking call that may never
// return, and what may end the wait for it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/bounded_call.h"
#include "common/clock.h"
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

// ncclCommInitRank or ncclCommSplit on a thread of its own, which lives until the call is done.
class CommMaking {
 public:
  // Returns what NCCL returned, and writes the handle. Owns all that it touches.
  using Make = std::function<Result(NcclApi& nccl, Comm* comm)>;

  // `name`: NCCL's, of the call. Throws Error(kResourceExhausted) where there is no thread.
  CommMaking(const Libraries& libraries, const NcclOptions& options, std::string name, Make make);
  // A call that is still inside NCCL is left behind; its thread aborts what it makes.
  ~CommMaking();
  CommMaking(const CommMaking&) = delete;
  CommMaking& operator=(const CommMaking&) = delete;

  // What was made, the caller's from now on. Throws Error(kTimeout) naming ranks that never came,
  // Error(kPeerLost) naming one that gave up or because the agent says that one has died, else what
  // NCCL said or why setup.failure is set. Ranks that were lost are looked for every
  // peer_check_interval.
  Comm wait(const SetUp& setup);

  bool returns_before(Deadline deadline) { return call_.returns_before(deadline); }

  // Whether a call of this process was left behind and has not come back. NCCL spins in it, so the
  // process is not to make another communicator.
  static bool is_any_left_behind();

 private:
  struct State;

  const std::shared_ptr<NcclApi> nccl_;
  const NcclOptions& options_;
  const std::string name_;
  const std::shared_ptr<State> state_;  // second owner: the call
  bool is_taken_ = false;               // wait() has returned what was made
  BoundedCall call_;
};

// Tells the other ranks why this one gives up, if the store can still be reached.
void tell_others(PeerBoard& board, const Error& error);

// Error(kTimeout) that names who never came, or says where to look.
Error timed_out(const SetUp& setup);

}  // namespace ddprun::nccl
