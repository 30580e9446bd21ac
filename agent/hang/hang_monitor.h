// SPDX-License-Identifier: Apache-2.0
// Watches one node's workers of one round (docs/hang-detection.md). It looks at them every 100 ms
// until it is destroyed. It says how far they are, which ones make no progress, and on request what
// each is in. io thread only.
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

// How far this node's ranks are, when that is worth a message: it changed, and the last one was
// long enough ago. Pure.
class TrainingReport {
 public:
  static constexpr std::chrono::seconds kInterval{5};

  explicit TrainingReport(RankNumbers ranks = {}) : numbers_(std::move(ranks)) {}

  // `pages`: by local rank; nullopt: the rank writes none. Samples per second count since the last
  // message, for ranks that go on and told samples. The parts of a step are each rank's mean since
  // the last message; if there was no step, the previous mean. nullopt: nothing to say now.
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
  // When and how many samples had been told at the first report since the last message.
  std::optional<Clock::time_point> counted_at_;
  std::uint64_t counted_ = 0;
  double rate_ = 0;
  std::vector<Rank> ranks_;  // by local rank
};

// When this node's step times are worth a message: a rank's own time changed by a quarter, and the
// last message was long enough ago. Pure.
class StepTimeReport {
 public:
  static constexpr std::chrono::seconds kInterval{10};

  // `times`: of the ranks that have any. True: say them; the next ones not before kInterval.
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
  bool pages_only = false;  // nothing is watched: it says how far the ranks are, nothing else
};

// All are called from the io context.
struct HangMonitorEvents {
  // Given by the owner. The progress page of a local rank is that by which it is judged. nullopt:
  // nobody writes it. read_progress is for those who look at the job, and may be what an observer
  // saw. The processes are by local rank, 0 where none runs.
  std::function<std::optional<ProgressWords>(int local_rank)> read_page, read_progress;
  std::function<std::vector<CommunicatorState>(int local_rank)> read_communicators;
  std::function<std::vector<pid_t>()> pids;
  // Said to the owner.
  std::function<void(membership::RankReport)> stalled;  // without frames
  std::function<void(std::uint64_t inquiry, std::vector<membership::RankReport>)> inspected;
  // No times: they are as they were.
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

  // Looks from now on.
  void start();

  // `inspected` follows within kInspectionTime, with the same number. One at a time: the last
  // request that comes meanwhile is answered afterwards, the others are not.
  void inspect(std::uint64_t inquiry);

  // Finds out where a worker's main thread is (membership::TailKind::kStack). Calls `done` once
  // within kInspectionTime, at once or from the io context, unless this ends before.
  using StackDone = std::function<void(std::vector<std::string> lines, std::string note)>;
  void take_stack(int local_rank, StackDone done);

 private:
  void arm();
  void look();
  void look_at_pages();
  void start_stacks();
  StackProcess& living_stacks();
  WaitingPlace place_of(int local_rank, pid_t at_work);
  membership::RankReport report(int local_rank, const RankView& view, pid_t at_work);

  boost::asio::io_context& io_;
  const HangMonitorOptions options_;
  const HangMonitorEvents events_;

  StallDetector detector_;
  SeenStepTimes seen_times_;  // of ranks that the detector has no times of
  StepTimeReport step_times_;
  TrainingReport training_;
  std::vector<std::optional<ProcessSampler>> processes_;  // by local rank
  OutsideWork outside_;
  // The call that a process was seen in last, by local rank: /proc doesn't name one that a look at
  // the stack interrupted.
  struct SeenCall {
    pid_t pid = 0;
    std::string text;
  };
  std::vector<SeenCall> seen_calls_;
  int looks_ = 0;
  boost::asio::steady_timer timer_;
  // Started when all workers run, so that none waits for it. Second owner: its handlers.
  std::shared_ptr<StackProcess> stacks_;
  bool inspects_ = false;                         // its stacks are being taken
  std::optional<std::uint64_t> inquiry_waiting_;  // until that is over
  std::shared_ptr<bool> alive_;                   // handlers of the io context hold it weakly
};

}  // namespace ddprun::agent
