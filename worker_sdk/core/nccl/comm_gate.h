// SPDX-License-Identifier: Apache-2.0
// Owns the ncclComm_t. NCCL takes one thread at a time in a communicator, and an abort only when no
// thread is inside. This class enforces both (docs/internals/nccl.md, "Who may call what").
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"

namespace ddprun::nccl {

// Used by any thread.
class CommGate {
 public:
  explicit CommGate(Comm comm) : comm_(comm) {}

  enum class IfBusy { kWait, kTurnBack };

  // Makes its thread the only one inside. comm() is nullptr if the gate is closed, or with
  // kTurnBack if another thread is inside.
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

  // Closes the gate, and returns the handle once no thread is inside. nullptr: a thread is still
  // inside at the deadline, or the handle was taken before.
  Comm take(Deadline deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Comm comm_;               // Guarded by mutex_; nullptr: closed
  bool is_inside_ = false;  // Guarded by mutex_
};

// These two end the NCCL communicator itself, within a deadline. No thread is inside it, nor
// enters.
//
// Calls ncclCommAbort. False: it did not return before the deadline, and hung() was called.
// `has_graphs`: an abort that doesn't return is left behind instead, for it waits until the program
// has destroyed its CUDA graphs. NCCL's work on the device ends all the same.
bool abort_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                Deadline deadline, bool has_graphs = false);

// Calls ncclCommDestroy for a healthy communicator with nothing under way. False: it did not return
// before the deadline, and is left behind: it waits for CUDA graphs, too.
bool destroy_comm(const std::shared_ptr<NcclApi>& nccl, Comm comm, const NcclOptions& options,
                  Deadline deadline);

// Calls options.on_hung_abort: `what`, a call of NCCL, has not returned since `begun`.
void hung(const NcclOptions& options, const std::string& what, Clock::time_point begun);

// With NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL fails the call if two host threads launch on one device at
// once (NCCL_LAUNCH_RACE_FATAL), even on different communicators.
//
// While this lock lives, no other thread of the process can have one for the same device. Hold it
// for the launch alone: a launch that waits for other ranks delays every communicator of the
// device.
class DeviceLaunchLock {
 public:
  // Returns whether the environment tells NCCL to keep the order of launches, as NCCL itself reads
  // it.
  static bool is_needed();

  explicit DeviceLaunchLock(int device);  // blocks

 private:
  const std::lock_guard<std::mutex> lock_;
};

}  // namespace ddprun::nccl
