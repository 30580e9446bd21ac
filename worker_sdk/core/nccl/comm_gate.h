// SPDX-License-Identifier: Apache-2.0
// Owner of the ncclComm_t. NCCL takes one thread at a time in a communicator, and an abort only
// when nobody is inside. This enforces both (docs/internals/nccl.md, "Who may call what").
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"

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

// The ends of the NCCL communicator itself, within a deadline. Nobody is inside it, nor comes in.
//
// ncclCommAbort. False: it did not return before the deadline, and hung() was called. `has_graphs`:
// it is left behind instead, for it waits until the program has destroyed its CUDA graphs. NCCL's
// work on the device ends all the same.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline, bool has_graphs = false);

// ncclCommDestroy of a healthy one that has nothing under way. False: it did not return before the
// deadline, and is left behind: it waits for CUDA graphs, too.
bool destroy_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                  Deadline deadline);

// options.on_hung_abort: `what`, a call of NCCL, did not return since `begun`.
void hung(const NcclOptions& options, const std::string& what, Clock::time_point begun);

// With NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL fails the call where two host threads launch on one device
// at once (NCCL_LAUNCH_RACE_FATAL), be it on different communicators.
//
// While it lives no other thread of this process has one of the same device. For the launch alone:
// a launch that waits for other ranks delays every communicator of the device.
class DeviceLaunchLock {
 public:
  // NCCL was told to keep the order of launches, in the environment, as NCCL itself reads it.
  static bool is_needed();

  explicit DeviceLaunchLock(int device);  // blocks

 private:
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace ddprun::nccl
