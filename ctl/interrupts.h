// SPDX-License-Identifier: Apache-2.0
// Signals that end a command's waiting, and nothing else. One thread, one at a time.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>

#include "common/unique_fd.h"

namespace ddprun::ctl {

// While one exists SIGINT, SIGTERM and SIGHUP are kept here.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Waits for at most so long; true: one has come, now or before.
  bool wait(std::chrono::milliseconds limit);
  // Its number.
  std::optional<int> signal() const { return signal_; }

 private:
  sigset_t before_{};
  UniqueFd fd_;
  std::optional<int> signal_;
};

}  // namespace ddprun::ctl
