// SPDX-License-Identifier: Apache-2.0
#include "common/exit_bound.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <thread>

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
    ::_exit(status);  // no thread can watch it
  }
}

}  // namespace

void bound_exit(std::chrono::milliseconds limit) {
  std::int64_t before = limit_ms;
  while (limit.count() < before && !limit_ms.compare_exchange_weak(before, limit.count())) {
  }
  // Handlers run in the opposite order, so each call adds one.
  if (::on_exit(exit_begins, nullptr) != 0) log_warning("on_exit: no memory");
}

}  // namespace ddprun
