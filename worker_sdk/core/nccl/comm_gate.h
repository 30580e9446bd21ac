// SPDX-License-Identifier: Apache-2.0
// Owner of the ncclComm_t. NCCL takes one thread at a time in a communicator, and an abort only
// when nobody is inside: this enforces both (docs/nccl.md, "Who may call what").
#pragma once

#include <condition_variable>
#include <mutex>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

// Any thread.
class CommGate {
 public:
  explicit CommGate(Comm comm) : comm_(comm) {}

  enum class IfBusy { kWait, kTurnBack };

  // The one caller inside. comm() is nullptr where the gate is closed, and with kTurnBack where
  // somebody else is inside.
  class Pass {
   public:
    explicit Pass(CommGate& gate, IfBusy if_busy = IfBusy::kWait);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    Comm comm() const { return comm_; }

   private:
    CommGate& gate_;
    Comm comm_ = nullptr;
  };

  // Closes the gate, and returns the handle when nobody is inside any more. nullptr: at the
  // deadline somebody still is, or it was taken before.
  Comm take(Deadline deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Comm comm_;               // Guarded by mutex_; nullptr: closed
  bool is_inside_ = false;  // Guarded by mutex_
};

}  // namespace ddprun::nccl
