// SPDX-License-Identifier: Apache-2.0
// Poll pauses that grow: NCCL and CUDA can be asked, but offer nothing to wait on with a deadline.
#pragma once

#include <algorithm>
#include <thread>

#include "common/clock.h"

namespace ddprun::nccl {

class Pause {
 public:
  // Sleeps, 20 µs the first time, at most 5 ms; not beyond the deadline.
  void take(Deadline deadline) {
    std::this_thread::sleep_for(std::min<Clock::duration>(next_, deadline.remaining()));
    next_ = std::min<Clock::duration>(next_ * 2, std::chrono::milliseconds(5));
  }

 private:
  Clock::duration next_ = std::chrono::microseconds(20);
};

}  // namespace ddprun::nccl
