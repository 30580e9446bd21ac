// SPDX-License-Identifier: Apache-2.0
// How long the parts of training steps take: forward, backward, communication hidden behind
// backward or not, waiting for data (docs/ddp.md). Pure: the caller passes times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "worker_sdk/core/worker_progress.h"
#include "worker_sdk/ddp/reducer.h"

namespace ddprun {

// Summary of a list of seconds; zeros for an empty one. 95 % of the list are at most p95.
struct Distribution {
  double median = 0, mean = 0, p95 = 0;
};

Distribution distribution_of(std::vector<double> values);

// Times are seconds.
struct StepStatistics {
  std::size_t num_steps = 0;   // steps that communicated, without the first, which warms up
  Distribution step;           // from the end of one averaging to that of the next
  Distribution forward;        // until the first gradient; the loss is included
  Distribution backward;       // from the first gradient to the last
  Distribution communication;  // while some bucket was under way
  Distribution exposed;        // the part after the last gradient, which nothing hid
  Distribution loader;         // before the step, waiting for data; 0 if nobody reports it
  double overlap = 0;          // hidden / all communication, over all steps; 0 if there is none
  std::uint64_t bytes_per_step = 0;  // bytes of the buckets in the last step
};

// Takes one step after the other; keeps the last kMaxSteps.
class StepRecorder {
 public:
  static constexpr std::size_t kMaxSteps = 10'000;

  // Says that a forward begins whose backward communicates. If there are several before one
  // backward, the first counts.
  void forward_begins(Clock::time_point at);

  // Adds the time that the loop waited for data of the coming step, or of the one under way.
  void waited_for_data(Clock::duration time) { loader_ += time; }

  // Says that the backward is over and all gradients are averages. Returns how long the step's
  // parts took; nullopt if the step isn't counted.
  std::optional<StepParts> step_ends(const IterationTrace& trace);

  std::size_t num_steps() const { return num_steps_; }
  StepStatistics statistics() const;

 private:
  std::optional<Clock::time_point> forward_;   // of the step under way
  std::optional<Clock::time_point> previous_;  // when the step before was over
  Clock::duration loader_{};
  std::size_t num_steps_ = 0;     // steps that ended
  std::vector<StepParts> steps_;  // a ring
  std::uint64_t bytes_ = 0;
};

// Returns {"num_steps":…,"step":{"median":…,"mean":…,"p95":…},…,"overlap":…,"bytes_per_step":…} in
// one line, below 1 KiB.
std::string to_json(const StepStatistics& statistics);

// Returns "step 12.3 ms (p95 15.0): forward 4.1, backward 6.0, communication 5.2 of which 0.4
// exposed (overlap 92 %), data 0.3; 4.8 MB per step". Leaves communication out if no bytes were
// sent.
std::string describe(const StepStatistics& statistics);

}  // namespace ddprun
