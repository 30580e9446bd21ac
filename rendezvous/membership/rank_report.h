// SPDX-License-Identifier: Apache-2.0
// What an agent says of one of its ranks when a rank of the job has stopped making progress
// (docs/hang-detection.md). Plain data; untrusted: the rendezvous shows it and compares it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/step_summary.h"

namespace ddprun::membership {

inline constexpr std::size_t kMaxReportedRanks = 64;  // of one node
inline constexpr std::size_t kMaxFrames = 16;
inline constexpr std::size_t kMaxFrameBytes = 120;
inline constexpr std::size_t kMaxOperationBytes = 256;
inline constexpr std::size_t kMaxCallBytes = 256;  // the system call and what it waits for

enum class RankActivity {
  kBlocked,  // no CPU time, no bytes worth mentioning since it went quiet
  kWorks,
  kStopped,  // by a signal or a debugger
};

struct RankReport {
  int global_rank = -1;
  int local_rank = -1;
  std::int64_t pid = 0;
  bool foreign = false;  // it writes no progress page: the next six mean nothing
  std::string phase;     // "start-up", "train", "checkpoint", "evaluate", "tear-down"
  std::uint64_t step = 0, steps_done = 0;
  std::uint64_t collectives_begun = 0, collectives_done = 0;
  std::string collective;  // the last one begun: "all_reduce"
  // The oldest operation that it is in, and for how long: "all_reduce #127 (25.0 MiB float32, sum)
  // of communicator 0". Empty: none, or it doesn't record them.
  std::string operation;
  std::chrono::milliseconds operation_time{0};
  std::chrono::milliseconds quiet{0};  // since its last progress
  std::chrono::milliseconds limit{0};  // of its phase; when it is reported
  // While it is blocked: when it may be acted upon; never before `limit`.
  std::chrono::milliseconds limit_if_blocked{0};
  // Likewise, while it works; nullopt: as long as it likes.
  std::optional<std::chrono::milliseconds> limit_if_working;
  RankActivity activity = RankActivity::kBlocked;
  int cpu_percent = 0;              // of one core, since it went quiet
  std::string work;                 // likewise: "GPU 98 %, 3.1 MB/s over sockets"; may be empty
  std::string state;                // "S"
  std::string wchan;                // where in the kernel; may be empty
  std::string call;                 // "read() of /data/part-07"; empty: not known, or it runs
  std::vector<std::string> frames;  // innermost first, Python's before the native ones
  std::string note;                 // why frames are missing

  bool in_collective() const { return !foreign && collectives_begun > collectives_done; }
};

// Times of one rank's steps: medians of the last ones, microseconds.
struct RankStepTime {
  int global_rank = -1;
  std::chrono::microseconds step{0};
  std::chrono::microseconds own{0};  // outside collectives
};

// How far the ranks of one node are.
struct TrainingStatus {
  std::string phase;              // of the rank that is the least far
  std::uint64_t step = 0;         // that one's: the last one begun
  int num_ranks = 0;              // that said a loss which is a number; 0: the next one is none
  double loss = 0;                // the mean of theirs; finite
  double samples_per_second = 0;  // of all that said a loss, number or not
  StepSummary steps;              // since it was said last
  int num_nan = 0;                // ranks that said a loss which is no number (NaN, infinity)
};

}  // namespace ddprun::membership
