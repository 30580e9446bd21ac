// SPDX-License-Identifier: Apache-2.0
// Ensures that one thread at a time begins a call of a communicator. Without that two operations
// could start in a different order on each rank, and their numbers would mix unnoticed.
#pragma once

#include <mutex>

#include "common/error.h"

namespace ddprun {

class OneCaller {
 public:
  // A thread that comes while another one holds the communicator.
  enum class Second { kIsRefused, kWaits };

  explicit OneCaller(Second second = Second::kIsRefused) : second_(second) {}

  // Holds the communicator for the calling thread as long as it lives. Error(kInvalidArgument):
  // another thread holds it, and second threads are refused.
  class Inside {
   public:
    explicit Inside(OneCaller& caller)
        : second_(caller.second_), lock_(caller.mutex_, std::defer_lock) {
      if (second_ == Second::kWaits) {
        lock_.lock();
      } else if (!lock_.try_lock()) {
        refuse();
      }
    }

    // The call has its place among the others and is about to wait for other ranks. So threads that
    // wait may begin theirs. Threads that are refused stay refused until this object is gone.
    void let_others_begin() {
      if (second_ == Second::kWaits) lock_.unlock();
    }

   private:
    [[noreturn]] static void refuse() {
      throw Error(ErrorCode::kInvalidArgument,
                  "two threads call one communicator at the same time: give each a communicator of "
                  "its own (split), or let one of them make all calls");
    }

    const Second second_;
    std::unique_lock<std::recursive_mutex> lock_;  // recursive: a group's calls begin inside it
  };

 private:
  const Second second_;
  std::recursive_mutex mutex_;
};

}  // namespace ddprun
