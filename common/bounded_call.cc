// SPDX-License-Identifier: Apache-2.0
#include "common/bounded_call.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun {
namespace {

std::atomic<std::int64_t> limit_ms{std::numeric_limits<std::int64_t>::max()};
std::atomic<bool> is_exiting{false};

void exit_begins(int status, void*) {
  if (is_exiting.exchange(true)) return;
  try {
    start_quiet_thread("ddprun-exit", [status] {
      std::this_thread::sleep_for(std::chrono::milliseconds(limit_ms));
      ::_exit(status);
    }).detach();
  } catch (const Error&) {
    ::_exit(status);  // there is no thread that could watch it
  }
}

}  // namespace

struct BoundedCall::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;  // Guarded by mutex
};

BoundedCall::BoundedCall(std::function<void()> call)
    : state_(std::make_shared<State>()),
      thread_(
          start_quiet_thread("ddprun-bounded", [state = state_, call = std::move(call)]() mutable {
            call();
            call = nullptr;  // destroys what it owns before the caller learns of the end
            std::lock_guard lock(state->mutex);
            state->returned = true;
            state->changed.notify_all();
          })) {}

BoundedCall::~BoundedCall() {
  bool returned = false;
  {
    std::lock_guard lock(state_->mutex);
    returned = state_->returned;
  }
  if (returned) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool BoundedCall::returns_before(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.at(), [this] { return state_->returned; });
}

bool returns_before(Deadline deadline, std::function<void()> call) {
  try {
    return BoundedCall(std::move(call)).returns_before(deadline);
  } catch (const Error& error) {
    log_warning(error.what());
    return false;
  }
}

void bound_exit(std::chrono::milliseconds limit) {
  std::int64_t before = limit_ms;
  while (limit.count() < before && !limit_ms.compare_exchange_weak(before, limit.count())) {
  }
  // Handlers run in the opposite order of their registration, so each call registers one more.
  if (::on_exit(exit_begins, nullptr) != 0) log_warning("on_exit: no memory");
}

}  // namespace ddprun
