// SPDX-License-Identifier: Apache-2.0
// Watches one node's workers of one round (docs/hang-detection.md). It looks at them every 100 ms
// until it is destroyed. It reports how far they are, which ones make no progress, and on request
// in which operation each is. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/hang/outside_work.h"
#include "agent/hang/process_sampler.h"
#include "agent/hang/rank_sample.h"
#include "agent/hang/seen_step_times.h"
#include "agent/hang/stack_process.h"
#include "agent/hang/stall_detector.h"
#include "common/clock.h"
#include "common/operation_facts.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {

const char* to_string(WorkPhase phase);

// Reports how far this node's ranks are, if that is worth a message. It must have changed, and the
// last message must be long enough ago. Pure.
class TrainingReport {
 public:
  static constexpr std::chrono::seconds kInterval{5};

  explicit TrainingReport(RankNumbers ranks = {}) : numbers_(std::move(ranks)) {}

  // `pages` are by local rank; nullopt: the rank writes none. Samples per second are since the last
  // message, for ranks that go on and report samples. The parts of a step are each rank's mean
  // since the last message; if there was no step, the previous mean. nullopt: there is nothing to
  // report now.
  std::optional<membership::TrainingStatus> look(
      const std::vector<std::optional<ProgressWords>>& pages, Clock::time_point now);
  bool has_said() const { return said_at_.has_value(); }

 private:
  struct Rank {
    StepSums said;  // at the last message
    std::optional<membership::RankSteps> steps;
  };
  membership::StepSummary summarize(const std::vector<std::optional<ProgressWords>>& pages);

  const RankNumbers numbers_;
  std::optional<Clock::time_point> said_at_;
  std::string said_phase_;
  std::uint64_t said_step_ = 0;
  std::uint64_t said_skipped_ = 0;
  std::uint64_t said_reports_ = 0;
  // The time and the number of samples of the last message; until there is one, of the first loss
  // or sample.
  std::optional<Clock::time_point> counted_at_;
  std::uint64_t counted_ = 0;
  double rate_ = 0;
  std::vector<Rank> ranks_;  // by local rank
};

// Decides when this node's step times are worth a message. A rank's own time must have changed by a
// quarter, and the last message must be long enough ago. Pure.
class StepTimeReport {
 public:
  static constexpr std::chrono::seconds kInterval{10};

  // `times` are those of the ranks that have any. True: report them; the next report is due after
  // kInterval at the earliest.
  bool due(const std::vector<membership::RankStepTime>& times, Clock::time_point now);

 private:
  std::vector<membership::RankStepTime> said_;
  std::optional<Clock::time_point> said_at_;
};

struct HangMonitorOptions {
  HangLimits limits;
  int num_workers = 1;
  RankNumbers ranks;
  std::string stacks_program;  // ddprun-stacks; empty: no stacks are taken
  std::string gpus_program;    // ddprun-gpus; empty: the use of GPUs is not looked at
  std::chrono::milliseconds interval{100};
  bool pages_only = false;  // true: it reports how far the ranks are, and watches nothing
};

// All are called from the io context.
struct HangMonitorEvents {
  // The owner sets these. `read_page` returns the progress page by which a local rank is judged, or
  // nullopt if nobody writes it. `read_progress` is for people who look at the job, and may return
  // what an observer saw. `pids` are by local rank; 0: none runs.
  std::function<std::optional<ProgressWords>(int local_rank)> read_page, read_progress;
  std::function<std::vector<CommunicatorState>(int local_rank)> read_communicators;
  std::function<std::vector<pid_t>()> pids;
  // The monitor calls these.
  std::function<void(membership::RankReport)> stalled;  // without frames
  std::function<void(std::uint64_t inquiry, std::vector<membership::RankReport>)> inspected;
  // Empty times: they have not changed.
  std::function<void(std::vector<membership::RankStepTime>,
                     std::optional<membership::TrainingStatus>)>
      steps_timed;
};

class HangMonitor {
 public:
  static constexpr std::chrono::milliseconds kInspectionTime{1'900};

  HangMonitor(boost::asio::io_context& io, HangMonitorOptions options, HangMonitorEvents events);
  // No event comes any more.
  ~HangMonitor();

  // Starts the looks.
  void start();

  // Inspects the ranks: `inspected` follows within kInspectionTime, with the same number. There is
  // one inspection at a time. If several requests come meanwhile, only the last is answered.
  void inspect(std::uint64_t inquiry);

  // Finds out where a worker's main thread is (membership::TailKind::kStack). Calls `done` once
  // within kInspectionTime, at once or from the io context, unless this object ends before.
  using StackDone = std::function<void(std::vector<std::string> lines, std::string note)>;
  void take_stack(int local_rank, StackDone done);

 private:
  void arm();
  void look();
  void look_at_pages();
  void start_stacks();
  StackProcess& living_stacks();
  WaitingPlace place_of(int local_rank, pid_t at_work);
  void add_collective(std::string& text, int local_rank) const;
  membership::RankReport report(int local_rank, const RankView& view, pid_t at_work);

  boost::asio::io_context& io_;
  const HangMonitorOptions options_;
  const HangMonitorEvents events_;

  StallDetector detector_;
  SeenStepTimes seen_times_;  // for ranks whose times the detector doesn't know
  StepTimeReport step_times_;
  TrainingReport training_;
  std::vector<std::optional<ProcessSampler>> processes_;  // by local rank
  OutsideWork outside_;
  // The last call that a process was seen in, by local rank. /proc doesn't name a call that was
  // interrupted by a look at the stack.
  struct SeenCall {
    pid_t pid = 0;
    std::string text;
  };
  std::vector<SeenCall> seen_calls_;
  int looks_ = 0;
  boost::asio::steady_timer timer_;
  // It is started when all workers run, so that none waits for it. Shared with its handlers.
  std::shared_ptr<StackProcess> stacks_;
  bool inspects_ = false;                         // an inspection's stacks are being taken
  std::optional<std::uint64_t> inquiry_waiting_;  // the next inspection
  std::shared_ptr<bool> alive_;                   // handlers of the io context hold it weakly
};

}  // namespace ddprun::agent
