// SPDX-License-Identifier: Apache-2.0
// Work of the nccl communicator, and the blocking wait that barrier() shares with it.
#pragma once

#include <memory>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/caller_stream.h"
#include "worker_sdk/core/nccl/operation.h"

namespace ddprun::nccl {

// Blocks until the operation is done; throws the communicator's failure. The watchdog ends the wait
// at the operation's deadline.
void wait_on_host(Operation& operation, const Failure& failure);

class NcclWork : public Work {
 public:
  struct Context {
    std::shared_ptr<CudaApi> cuda;
    std::shared_ptr<Failure> failure;
    std::shared_ptr<CallerStream> caller;  // second owner: the communicator
    int device = 0;
    int rank = 0;
    bool blocking_wait = false;
  };

  NcclWork(Context context, std::shared_ptr<Operation> operation);

  bool is_completed() override;
  void wait() override;

 private:
  void order_caller_behind();

  const Context context_;
  const std::shared_ptr<Operation> operation_;  // second owner: the watchdog
};

}  // namespace ddprun::nccl
