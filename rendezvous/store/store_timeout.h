// SPDX-License-Identifier: Apache-2.0
// Sets a store's time-out for one scope.
#pragma once

#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "rendezvous/store/store.h"

namespace ddprun::store {

// Restores the previous time-out at the end of the scope, even if another one was set in between.
class StoreTimeout {
 public:
  StoreTimeout(Store& store, std::chrono::milliseconds timeout)
      : store_(store), before_(store.timeout()) {
    store_.set_timeout(timeout);
  }
  // Sets the time left until `deadline`, 1 ms at least.
  StoreTimeout(Store& store, Deadline deadline)
      : StoreTimeout(
            store, std::max(std::chrono::milliseconds(1),
                            std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()))) {}
  ~StoreTimeout() { store_.set_timeout(before_); }
  StoreTimeout(const StoreTimeout&) = delete;
  StoreTimeout& operator=(const StoreTimeout&) = delete;

 private:
  Store& store_;
  const std::chrono::milliseconds before_;
};

}  // namespace ddprun::store
