// SPDX-License-Identifier: Apache-2.0
// The io thread of a test.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "tests/support/catch.h"

namespace ddprun::test {

// Tasks that are posted to it run while the test waits.
class Posts {
 public:
  std::function<void(std::function<void()>)> post() {
    return [this](std::function<void()> call) {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
      wakes_.notify_one();
    };
  }
  void run_until(const std::function<bool()>& done) {
    while (!done()) {
      std::unique_lock lock(mutex_);
      REQUIRE(wakes_.wait_for(lock, std::chrono::seconds(30), [&] { return !calls_.empty(); }));
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<std::function<void()>> calls_;
};

}  // namespace ddprun::test
