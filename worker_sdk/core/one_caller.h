// SPDX-License-Identifier: Apache-2.0
// Ensures that one thread at a time calls a communicator. Operations of two threads would start in
// a different order on each rank, and their numbers would mix unnoticed.
#pragma once

#include <atomic>

#include "common/error.h"

namespace ddprun {

class OneCaller {
 public:
  // Holds the communicator for the calling thread as long as it lives. Error(kInvalidArgument):
  // another thread holds it.
  class Inside {
   public:
    explicit Inside(OneCaller& caller) : caller_(caller) {
      if (!caller_.is_taken_.exchange(true, std::memory_order_acquire)) return;
      throw Error(ErrorCode::kInvalidArgument,
                  "two threads call one communicator at the same time: give each a communicator of "
                  "its own (split), or let one of them make all calls");
    }
    ~Inside() { caller_.is_taken_.store(false, std::memory_order_release); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    OneCaller& caller_;
  };

 private:
  std::atomic<bool> is_taken_{false};
};

}  // namespace ddprun
