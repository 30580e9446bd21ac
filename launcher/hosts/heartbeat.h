// SPDX-License-Identifier: Apache-2.0
// One end of a channel's heartbeat: when to say that we are there, and when the other end has been
// silent for too long. Pure: no I/O, clock or timer.
#pragma once

#include <chrono>
#include <optional>

#include "common/clock.h"

namespace ddprun::launcher {

class Heartbeat {
 public:
  // `beats`: this end speaks three times in each patience by itself; else only when asked.
  explicit Heartbeat(bool beats) : beats_(beats) {}

  // From now on the other end has to be heard within `patience`, again and again. 0: it need not.
  void expect(std::chrono::milliseconds patience, Clock::time_point now);
  // Anything came from there.
  void heard(Clock::time_point now);
  // False: this end reads nothing for now, so that silence means nothing.
  void listen(bool listens, Clock::time_point now);

  struct Due {
    bool beat = false;    // say that we are there
    bool silent = false;  // nothing was heard for the patience
  };
  // What is due. Where this comes much later than next() asked for, this process itself stood still
  // (stopped, or its machine was): what came meanwhile has yet to be read, so the wait begins anew.
  Due step(Clock::time_point now);
  // When step() is to be called; nullopt: not before expect().
  std::optional<Clock::time_point> next() const;

  std::chrono::milliseconds patience() const { return patience_; }

 private:
  const bool beats_;
  std::chrono::milliseconds patience_{0};
  bool listens_ = true;
  std::optional<Clock::time_point> beat_at_;
  std::optional<Clock::time_point> silent_at_;
};

}  // namespace ddprun::launcher
