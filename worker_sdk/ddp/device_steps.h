// SPDX-License-Identifier: Apache-2.0
// When the parts of steps ran on a GPU. The host only starts them, so its clock says little. Each
// step has five events, in the stream that it runs in, as in PyTorch's DDP
// (torch/csrc/distributed/c10d/reducer_timer.hpp). No thread waits for them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "worker_sdk/ddp/reducer.h"

namespace ddprun {

// A step that the device has done, in StepRecorder's form.
struct DeviceStep {
  std::optional<Clock::time_point> forward;  // nullopt: no forward before this backward
  Clock::duration loader{};
  // It has one bucket for all: from the first one's launch to the last one's end.
  IterationTrace trace;
};

// An Event marks a moment in the calling thread's current stream. It has record(), has_passed(),
// and seconds_since(earlier) once both have passed. One thread at a time.
template <typename Event>
class DeviceSteps {
 public:
  explicit DeviceSteps(std::function<Event()> make) : make_(std::move(make)) {}

  // Says that the step under way has come to `mark` on the host. If there are several forwards, the
  // first counts. A first gradient removes the marks of a backward that was not counted: a join's
  // shadow step (DdpBase::Join).
  void mark(StepMark mark) {
    if (mark == StepMark::kFirstReady) {
      for (std::size_t i = index_of(mark); i < kNumStepMarks; ++i) give_back(current_[i]);
    }
    std::optional<Event>& event = current_[index_of(mark)];
    if (event) return;
    event.emplace(take_event());
    event->record();
  }

  // Called when all marks of the step except kForward are set. `loader` is the time that the loop
  // waited for its data, on the host.
  void step_ends(std::uint64_t num_bytes, Clock::duration loader) {
    pending_.push_back({std::exchange(current_, {}), num_bytes, loader});
  }

  // Returns the oldest step that was not taken yet; nullopt: there is none, or the device has not
  // done it.
  std::optional<DeviceStep> take() {
    if (pending_.empty() || !has_passed(pending_.front(), StepMark::kFinished) ||
        !has_passed(pending_.front(), StepMark::kForward)) {  // kForward may be on another stream
      return std::nullopt;
    }
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    const std::optional<Event>& forward = at(pending, StepMark::kForward);
    const std::optional<Event>& first = forward ? forward : at(pending, StepMark::kFirstReady);
    const Event& origin = previous_ ? *previous_ : *first;
    const auto time_of = [&](StepMark mark) {
      const std::chrono::duration<double> since(at(pending, mark)->seconds_since(origin));
      return origin_time_ + std::chrono::duration_cast<Clock::duration>(since);
    };
    DeviceStep step;
    if (forward) step.forward = time_of(StepMark::kForward);
    step.loader = pending.loader;
    step.trace.first_ready = time_of(StepMark::kFirstReady);
    step.trace.backward_end = time_of(StepMark::kBackwardEnd);
    step.trace.finished = time_of(StepMark::kFinished);
    step.trace.buckets.push_back({.size_bytes = pending.num_bytes,
                                  .launched = time_of(StepMark::kLaunched),
                                  .waited = step.trace.finished});
    origin_time_ = step.trace.finished;
    std::swap(previous_, at(pending, StepMark::kFinished));
    for (std::optional<Event>& event : pending.events) give_back(event);
    return step;
  }

 private:
  using Events = std::array<std::optional<Event>, kNumStepMarks>;  // by StepMark
  struct Pending {
    Events events;
    std::uint64_t num_bytes;
    Clock::duration loader;
  };

  static std::size_t index_of(StepMark mark) { return static_cast<std::size_t>(mark); }
  static std::optional<Event>& at(Pending& pending, StepMark mark) {
    return pending.events[index_of(mark)];
  }

  static bool has_passed(Pending& pending, StepMark mark) {
    return !at(pending, mark) || at(pending, mark)->has_passed();
  }

  Event take_event() {
    if (free_.empty()) return make_();
    Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  void give_back(std::optional<Event>& event) {
    if (event) free_.push_back(std::move(*event));
    event.reset();
  }

  const std::function<Event()> make_;
  Events current_;
  std::deque<Pending> pending_;
  // The end of the last step that was taken, and its time. Each step is timed from there: CUDA
  // gives milliseconds as a float, which is too coarse after some minutes.
  std::optional<Event> previous_;
  Clock::time_point origin_time_{std::chrono::seconds(1)};
  std::vector<Event> free_;
};

}  // namespace ddprun
