// SPDX-License-Identifier: Apache-2.0
#include "ctl/place_questions.h"

#include <algorithm>
#include <cstdio>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::ctl {
namespace {

constexpr std::chrono::milliseconds kFirstPause{200}, kLongestPause{5'000};

}  // namespace

PlaceQuestions::PlaceQuestions(Interrupts& interrupts, const submit::Scheduler& scheduler,
                               std::chrono::milliseconds patience)
    : interrupts_(interrupts), scheduler_(scheduler), patience_(patience) {}

bool PlaceQuestions::ask(const std::function<void()>& question) {
  const Deadline silence = Deadline::after(patience_);
  bool is_said = false;
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    try {
      if (scheduler_.may_end_in_question()) {
        interrupts_.end_in(question);
      } else {
        question();
      }
      was_there_ = true;
      return true;
    } catch (const Error& error) {
      // ^C ends what was asked, too.
      if (interrupts_.wait(std::chrono::milliseconds(0))) return false;
      if (!was_there_ || !scheduler_.may_be_over(error) || silence.expired()) throw;
      if (!is_said) {
        std::fprintf(stderr, "ddprunctl: %s; asking again\n", one_line(error.what()).c_str());
      }
      is_said = true;
    }
    if (interrupts_.wait(pause)) return false;
  }
}

}  // namespace ddprun::ctl
