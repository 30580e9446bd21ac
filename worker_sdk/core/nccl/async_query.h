// SPDX-License-Identifier: Apache-2.0
// ncclCommGetAsyncError on a thread of its own: it never blocks, says NCCL, but whoever watches
// deadlines must not depend on that.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/clock.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// One thread at a time.
class AsyncQuery {
 public:
  struct Answer {
    Result state;                // kSuccess (also where the gate is closed), kInProgress, …
    std::optional<Error> error;  // set for any other state, and for a query that hangs
  };

  // Shared owners of `nccl` and `gate`: the thread, which may be left behind. Errors begin with
  // "rank <rank>: <what>: ". `limit`: after this a query hangs. Throws Error(kResourceExhausted)
  // where there is no thread.
  AsyncQuery(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CommGate> gate, int rank,
             std::string what, std::chrono::milliseconds limit);
  // A query that hangs is left behind with its thread.
  ~AsyncQuery();
  AsyncQuery(const AsyncQuery&) = delete;
  AsyncQuery& operator=(const AsyncQuery&) = delete;

  // Begins a query unless one is under way, and waits 10 ms at most. nullopt: no answer yet. A
  // query that is inside NCCL is inside the gate, too.
  std::optional<Answer> ask();

 private:
  struct State;
  static void serve(State& state);

  const std::chrono::milliseconds limit_;
  const std::shared_ptr<State> state_;  // second owner: the thread
  Clock::time_point begun_{};           // of the query under way
  int num_looks_ = 0;                   // at it
  std::thread thread_;
};

}  // namespace ddprun::nccl
