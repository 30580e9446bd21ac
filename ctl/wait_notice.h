// SPDX-License-Identifier: Apache-2.0
// Tells who sits at a terminal what is waited for, where that takes longer than a moment.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace ddprun::ctl {

class WaitNotice {
 public:
  // `line` is for stderr, after 1.5 s; never where that is no terminal: a script has the line that
  // says how it ended.
  explicit WaitNotice(std::string line);
  ~WaitNotice();  // no line follows; at once
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;    // where there is a terminal
};

}  // namespace ddprun::ctl
