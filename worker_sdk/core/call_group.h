// SPDX-License-Identifier: Apache-2.0
// The calls of Communicator::group() on a communicator that moves host memory.
#pragma once

#include <functional>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

// Returns a Work that is done when all `works` are. Its wait() waits for all of them, then throws
// the first error.
WorkPtr joined_work(std::vector<WorkPtr> works);

// Keeps calls until the group's end. Used by one thread.
class CallGroup {
 public:
  // Runs `calls`, then starts what they have added. Throws what `calls` throws. Throws
  // Error(kInvalidArgument) inside another group or if this rank's messages to itself don't match.
  // After an error nothing has been started.
  WorkPtr run(const std::function<void()>& calls, bool async);

  bool is_open() const { return is_open_; }

  // Call these only while the group is open. `start` returns the operation's Work.
  void add(std::function<WorkPtr()> start) { starts_.push_back(std::move(start)); }
  void add_send_to_self(const TensorView& buffer) { sends_.push_back(buffer); }
  void add_receive_from_self(const TensorView& buffer) { receives_.push_back(buffer); }

 private:
  void check_messages_to_self() const;

  bool is_open_ = false;
  std::vector<std::function<WorkPtr()>> starts_;
  std::vector<TensorView> sends_, receives_;  // from this rank to itself
};

}  // namespace ddprun
