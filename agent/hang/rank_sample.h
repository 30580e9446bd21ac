// SPDX-License-Identifier: Apache-2.0
// One look at one rank, and the state of a rank after many looks. Plain data.
// docs/internals/hang-detection.md has the words and the rules.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/progress_page.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {

using WorkPhase = ProgressPhase;
using Activity = membership::RankActivity;

// The progress page's words that the worker writes.
struct ProgressWords {
  WorkPhase phase = WorkPhase::kStartUp;  // also for a value that is none
  std::uint64_t step = 0;                 // the last one begun
  std::uint64_t steps_done = 0;
  std::uint64_t collectives_begun = 0;
  std::uint64_t collectives_done = 0;
  CollectiveKind last_collective = CollectiveKind::kNone;  // likewise
  std::uint64_t num_reports = 0;  // how often the loop told its loss; 0: the next two are none
  std::uint64_t loss_bits = 0;    // of a double: as a number it might not be equal to itself
  std::uint64_t samples = 0;      // 0: it told none
  std::optional<StepSums> steps;  // nullopt: it told none, or is writing them now
  // As its observer has seen them (docs/observe.md); 0: it saw none.
  std::uint64_t gpu_peak_bytes = 0;
  std::uint64_t skipped_steps = 0;

  bool in_collective() const { return collectives_begun > collectives_done; }
  friend bool operator==(const ProgressWords&, const ProgressWords&) = default;
};

// /proc's part. While the rank is quiet `cpu` and `bytes` include all that the worker started.
// `cpu` never goes back; `bytes` may, when it turns out that what came was an ended child's old
// count.
struct ProcessFacts {
  char state = '?';  // of the main thread, as ps shows it
  std::chrono::microseconds cpu{0};
  std::uint64_t bytes = 0;  // read and written
  // Seen only while the rank is quiet (outside_work.h), then of all that it started. Never goes
  // back.
  std::uint64_t network_bytes = 0;  // by TCP
  std::chrono::microseconds gpu{0};

  bool stopped() const { return state == 'T' || state == 't'; }
};

// One look at one rank. No words: a foreign worker, which doesn't write its page.
struct RankSample {
  std::optional<ProgressWords> words;
  ProcessFacts process;
};

// The limits of --hang-timeout; unset ones are learnt.
struct HangLimits {
  std::optional<std::chrono::milliseconds> startup, first, step, checkpoint, teardown, foreign;
  bool operator==(const HangLimits&) const = default;
};

// One rank after many looks.
struct RankView {
  std::optional<ProgressWords> words;
  Clock::duration quiet{};    // since its last progress, without the times when it was stopped
  Clock::duration limit{};    // of its phase; when it is reported
  Clock::duration unmoved{};  // since it last read or wrote a byte
  Clock::duration limit_if_blocked{};  // when it may be acted upon
  // How long it may be quiet while it works; nullopt: as long as it likes.
  std::optional<Clock::duration> limit_if_working;
  Activity activity = Activity::kBlocked;
  char state = '?';
  int cpu_percent = 0;      // of one core, since it went quiet
  std::uint64_t bytes = 0;  // moved since then
  // Medians; nullopt: too few steps yet. `own`: outside collectives.
  std::optional<Clock::duration> step_time, own_step_time;
};

// The global ranks of one node's workers.
struct RankNumbers {
  int first = 0;  // of the node's first worker
  // When the workers of some local ranks are gone (docs/inplace.md): the local ranks that are left,
  // ascending, numbered from `first` on. Empty: all are there.
  std::vector<int> left = {};

  int of(int local_rank) const {
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] == local_rank) return first + static_cast<int>(i);
    }
    return left.empty() ? first + local_rank : -1;
  }
};

}  // namespace ddprun::agent
