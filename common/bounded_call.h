// SPDX-License-Identifier: Apache-2.0
// Runs a call into a library that may never return, on a thread that can be left behind. Also
// limits the time of the process' exit, in case it hangs in the library.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "common/clock.h"

namespace ddprun {

class BoundedCall {
 public:
  // Starts `call`, which must own (by value) all that it touches: its thread may be left behind.
  // Throws Error(kResourceExhausted) where there is no thread.
  explicit BoundedCall(std::function<void()> call);
  // Leaves a call that still runs behind.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // Waits for the call's end, at most until the deadline. True: what the call owned is destroyed.
  bool returns_before(Deadline deadline);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

// Runs `call` as BoundedCall does. True: it returned before the deadline. False: it still runs, or
// there was no thread for it, which is logged.
bool returns_before(Deadline deadline, std::function<void()> call);

// For a process in which a library hangs, or may hang: its exit handlers could hang as well. From
// now on the process ends within `limit` after it has called exit(), or main() has returned. It
// ends with the status that it was given. Exit handlers that are registered by now, and destructors
// of such static objects, can't delay that. Handlers run in the opposite order of their
// registration: one that is registered after the last call runs first, and has no limit. The
// shortest limit counts. Any thread.
void bound_exit(std::chrono::milliseconds limit);

}  // namespace ddprun
