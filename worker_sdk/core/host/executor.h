// SPDX-License-Identifier: Apache-2.0
// Runs operations one after the other: in the caller when nothing is queued (lowest latency), else
// in the order of issue by a progress thread or by whoever waits, whichever comes first.
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker_sdk/core/communicator.h"

namespace ddprun::host {

class OrderedExecutor {
 public:
  using Operation = std::function<void()>;

  // `thread_name` is at most 15 characters; the thread starts with the first submit().
  explicit OrderedExecutor(std::string thread_name);
  // Operations under way must be able to end (abort them before). Queued ones fail with kAborted.
  ~OrderedExecutor();
  OrderedExecutor(const OrderedExecutor&) = delete;
  OrderedExecutor& operator=(const OrderedExecutor&) = delete;

  // Returns when `operation` and all before it have run; throws what it threw.
  void run(const Operation& operation);
  // Queues it. What it throws comes out of wait(). Throws Error(kResourceExhausted) where there is
  // no thread for it; it is not queued then.
  WorkPtr submit(Operation operation);

  // Shared with the Work objects, which may outlive the executor.
  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

// Work that is done already.
WorkPtr completed_work();

}  // namespace ddprun::host
