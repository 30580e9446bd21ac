// SPDX-License-Identifier: Apache-2.0
// A store's time-out for the length of one scope.
#pragma once

#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "rendezvous/store/store.h"

namespace ddprun::store {

// Puts the time-out that it found back at the end of the scope, whatever was set in between.
class StoreTimeout {
 public:
  StoreTimeout(Store& store, std::chrono::milliseconds timeout)
      : store_(store), before_(store.timeout()) {
    store_.set_timeout(timeout);
  }
  // The time left until `deadline`, 1 ms at least.
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
