// SPDX-License-Identifier: Apache-2.0
#include "common/bounded_call.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun {

bool returns_before(Deadline deadline, std::function<void()> call) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool returned = false;
  };
  // Second owner: the thread, which may outlive this call.
  auto state = std::make_shared<State>();
  auto body = [state, call = std::move(call)]() mutable {
    call();
    call = nullptr;  // what it owns goes before the caller hears of the end
    std::lock_guard lock(state->mutex);
    state->returned = true;
    state->changed.notify_all();
  };
  std::thread thread;
  try {
    thread = start_quiet_thread("ddprun-bounded", std::move(body));
  } catch (const Error& error) {
    log_warning(error.what());
    return false;
  }
  bool returned = false;
  {
    std::unique_lock lock(state->mutex);
    returned = state->changed.wait_until(lock, deadline.at(), [&] { return state->returned; });
  }
  if (returned) {
    thread.join();
  } else {
    thread.detach();
  }
  return returned;
}

}  // namespace ddprun
