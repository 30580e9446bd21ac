// SPDX-License-Identifier: Apache-2.0
#include "ctl/wait_notice.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun::ctl {

constexpr std::chrono::milliseconds kMoment{1'500};

WaitNotice::WaitNotice(std::string line) {
  if (::isatty(STDERR_FILENO) == 0) return;
  auto body = [this, line = std::move(line)] {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, kMoment, [this] { return is_over_; })) return;
    std::fprintf(stderr, "ddprunctl: %s\n", one_line(line).c_str());
  };
  try {
    thread_ = start_quiet_thread("notice", std::move(body));
  } catch (const Error&) {  // the answer is worth more than that it is waited for
  }
}

WaitNotice::~WaitNotice() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace ddprun::ctl
