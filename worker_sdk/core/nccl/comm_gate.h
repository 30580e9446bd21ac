// SPDX-License-Identifier: Apache-2.0
// Owner of the ncclComm_t: lets callers in until the watchdog takes the handle away to end it, so
// that no NCCL call starts on a communicator that is being freed. Likewise of one that a split of
// it is making.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "common/clock.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::nccl {

class CommGate {
 public:
  explicit CommGate(Comm comm) : comm_(comm) {}

  // One caller inside. comm() is nullptr when the handle has been taken.
  class Pass {
   public:
    explicit Pass(CommGate& gate);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    Comm comm() const { return comm_; }

   private:
    CommGate& gate_;
    Comm comm_;
  };

  // Closes the gate and returns the handle, nullptr when it was taken before. Waits until callers
  // have left, at most until the deadline: a caller that hangs inside NCCL is freed by the abort
  // that follows, which is the one call that NCCL allows then.
  Comm take(Deadline deadline);

  // Whether nobody is inside, at the deadline at the latest.
  bool empties_before(Deadline deadline);

  // From now on NCCL may write at `child` the handle of a communicator that it makes of this one:
  // whoever aborts this one has that one to abort afterwards. One at a time.
  void begin_split(std::shared_ptr<Comm> child);
  // It is made: the caller's. False: take_child() came first.
  bool end_split();
  // What a split under way writes to; null: none is. NCCL is done with it when this one's abort has
  // returned.
  std::shared_ptr<Comm> take_child();

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  Comm comm_;                    // Guarded by mutex_
  int num_inside_ = 0;           // Guarded by mutex_
  std::shared_ptr<Comm> child_;  // Guarded by mutex_; second owner: the call that splits
};

}  // namespace ddprun::nccl
