// SPDX-License-Identifier: Apache-2.0
// Where a job's output is shown. A signal ends that also while nobody reads it, and a reader that
// has left ("| head") is noticed. One thread.
#pragma once

#include <chrono>
#include <string_view>

#include "ctl/interrupts.h"
#include "ctl/place_questions.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::ctl {

class LogOutput {
 public:
  // `fd` is somebody else's; `interrupts` outlives it.
  LogOutput(int fd, Interrupts& interrupts);

  // Writes all of it. False: a signal has come, or it can't be written.
  bool write(std::string_view text);
  // Waits for at most so long. False: likewise.
  bool pause(std::chrono::milliseconds limit);
  // errno of what can't be written; 0: nothing was lost.
  int lost() const { return lost_; }

  // Of which both are, while it is used.
  submit::LogView view(PlaceQuestions& questions);

 private:
  const int fd_;
  Interrupts& interrupts_;
  int lost_ = 0;
};

}  // namespace ddprun::ctl
