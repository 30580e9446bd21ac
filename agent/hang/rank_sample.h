// SPDX-License-Identifier: Apache-2.0
// The result of one look at one rank, and the state of a rank after many looks. Plain data.
// docs/internals/hang-detection.md explains the terms and the rules.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/progress_page.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {

using WorkPhase = ProgressPhase;
using Activity = membership::RankActivity;

// The words of the progress page that the worker writes.
struct ProgressWords {
  WorkPhase phase = WorkPhase::kStartUp;  // also for an unknown value
  std::uint64_t step = 0;                 // the last one begun
  std::uint64_t steps_done = 0;
  std::uint64_t collectives_begun = 0;
  std::uint64_t collectives_done = 0;
  CollectiveKind last_collective = CollectiveKind::kNone;  // also for an unknown value
  std::uint64_t num_reports = 0;  // number of reported losses; 0: the next two values are unset
  std::uint64_t loss_bits = 0;    // of a double, since a NaN is not equal to itself
  std::uint64_t samples = 0;      // 0: it reported none
  std::optional<StepSums> steps;  // nullopt: it reported none, or is writing them now
  // Values that its observer has seen (docs/observe.md); 0: it saw none.
  std::uint64_t gpu_peak_bytes = 0;
  std::uint64_t skipped_steps = 0;
  std::string seen_collective;  // "all_reduce #812": the last one that began; empty: it saw none

  bool in_collective() const { return collectives_begun > collectives_done; }
  friend bool operator==(const ProgressWords&, const ProgressWords&) = default;
};

// Values from /proc. While the rank is quiet `cpu` and `bytes` include all processes that the
// worker started. `cpu` never goes back. `bytes` may, when an increase turns out to be the old
// count of an ended child.
struct ProcessFacts {
  char state = '?';  // of the main thread, as ps shows it
  std::chrono::microseconds cpu{0};
  std::uint64_t bytes = 0;  // read and written
  // The work outside /proc (outside_work.h) of the worker and all that it started. It is measured
  // only while the rank is quiet. Never goes back.
  std::uint64_t network_bytes = 0;  // over TCP
  std::chrono::microseconds gpu{0};

  bool stopped() const { return state == 'T' || state == 't'; }
};

// The result of one look at one rank. Without words it is a foreign worker, which doesn't write its
// page.
struct RankSample {
  std::optional<ProgressWords> words;
  ProcessFacts process;
};

// The mean of one of the sums over the steps in between, of which there is one at least. A worker
// may write what it likes: sums may have gone back.
inline double mean_between(const StepSums& before, const StepSums& now,
                           std::uint64_t StepSums::*sum) {
  if (now.*sum <= before.*sum) return 0;
  return static_cast<double>(now.*sum - before.*sum) /
         static_cast<double>(now.num_steps - before.num_steps);
}

// The limits of --hang-timeout; unset ones are learnt.
struct HangLimits {
  std::optional<std::chrono::milliseconds> startup, first, step, checkpoint, teardown, foreign;
  bool operator==(const HangLimits&) const = default;
};

// One rank after many looks.
struct RankView {
  std::optional<ProgressWords> words;
  Clock::duration quiet{};    // since its last progress, without the times in which it was stopped
  Clock::duration limit{};    // when it is reported in its phase
  Clock::duration unmoved{};  // since it last read or wrote a byte
  Clock::duration limit_if_blocked{};  // when it may be acted upon
  // How long it may be quiet while it works; nullopt: without limit.
  std::optional<Clock::duration> limit_if_working;
  Activity activity = Activity::kBlocked;
  char state = '?';
  int cpu_percent = 0;      // of one core, since it went quiet
  std::uint64_t bytes = 0;  // moved since then
  // Medians; nullopt: there were too few steps yet. `own`: the part outside collectives.
  std::optional<Clock::duration> step_time, own_step_time;
};

// The global ranks of one node's workers.
struct RankNumbers {
  int first = 0;  // of the node's first worker
  // The remaining local ranks, ascending, if the workers of others are gone (docs/inplace.md). They
  // are numbered from `first` on. Empty: all are there.
  std::vector<int> left = {};

  int of(int local_rank) const {
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] == local_rank) return first + static_cast<int>(i);
    }
    return left.empty() ? first + local_rank : -1;
  }
};

}  // namespace ddprun::agent
