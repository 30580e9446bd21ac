// SPDX-License-Identifier: Apache-2.0
// Questions to the place where a job is, for as long as the user wants to know. One thread.
#pragma once

#include <chrono>
#include <functional>

#include "ctl/interrupts.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::ctl {

class PlaceQuestions {
 public:
  // `patience`: so long one that was there is asked again where it is away. Both outlive it.
  PlaceQuestions(Interrupts& interrupts, const submit::Scheduler& scheduler,
                 std::chrono::milliseconds patience);

  // It has just taken the job.
  void was_there() { was_there_ = true; }

  // As LogView::ask has it; false: a signal has come. Throws what the question does, but what may
  // pass only once the patience is over.
  bool ask(const std::function<void()>& question);

 private:
  Interrupts& interrupts_;
  const submit::Scheduler& scheduler_;
  const std::chrono::milliseconds patience_;
  bool was_there_ = false;
};

}  // namespace ddprun::ctl
