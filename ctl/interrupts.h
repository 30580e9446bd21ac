// SPDX-License-Identifier: Apache-2.0
// Signals that end a command's waiting, and nothing else. One thread, one at a time.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::ctl {

// While one exists SIGINT, SIGTERM and SIGHUP are kept here.
class Interrupts {
 public:
  // `last_words`: a line that end_in() says on stderr where it ends the process; empty: none.
  explicit Interrupts(std::string last_words = {});
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Calls what may wait for long, and leaves nothing behind where it is cut off: one that comes
  // meanwhile, or came before, ends the process at once, with 128 and its number, after the last
  // words.
  void end_in(const std::function<void()>& call) const;

  // Waits for at most so long; true: one has come, now or before.
  bool wait(std::chrono::milliseconds limit);
  // Likewise, and until `fd` is ready for `events`, has failed or ended: how it is then (poll(2)).
  short wait_with(int fd, short events, Deadline deadline);
  // Its number.
  std::optional<int> signal() const { return signal_; }

 private:
  void take();

  const std::string last_words_;
  sigset_t before_{}, kept_{};
  UniqueFd fd_;
  std::optional<int> signal_;
};

}  // namespace ddprun::ctl
