// SPDX-License-Identifier: Apache-2.0
// How far this worker is, in words of shared memory that its agent reads (docs/agent-socket.md): no
// system call, no lock. Without an agent the words are private and everything works the same.
#pragma once

#include <cstdint>
#include <functional>

#include "common/clock.h"
#include "common/progress_page.h"
#include "common/unique_fd.h"

namespace ddprun {

// Steps and phases are one thread's business, the loop's; the rest may be called from any thread.
class WorkerProgress {
 public:
  // A page that nobody reads.
  WorkerProgress();
  // The agent's page. Throws Error(kSystem), Error(kProtocol) where it is none of this version.
  explicit WorkerProgress(const UniqueFd& memory);

  // From a page that nobody reads to the agent's, with all that is in it; the loop's thread. Throws
  // as the constructor does, and stays where it is then.
  void move_to(const UniqueFd& memory);
  ~WorkerProgress();
  WorkerProgress(const WorkerProgress&) = delete;
  WorkerProgress& operator=(const WorkerProgress&) = delete;

  // Step `step` ≥ 1 of the job, counted over restarts, begins; the one before it is done. Phase:
  // train.
  void begin_step(std::uint64_t step);
  void end_step();

  // Likewise for a loop that tells no numbers: counted from 1. Nothing where begin_step() was ever
  // called.
  void count_step();
  void end_counted_step();

  void set_phase(ProgressPhase phase);

  // One call at the end of the first step; `step` is 0 where the loop tells no numbers.
  void on_first_step(std::function<void(std::uint64_t step)> call) {
    first_step_ = std::move(call);
  }

  // Called at the beginning of each step until it returns false.
  void on_begin(std::function<bool()> call) { begun_ = std::move(call); }

  void collective_begun(CollectiveKind kind);
  void collective_done();

  StopRequest stop_request() const;         // of the agent
  Clock::time_point stop_deadline() const;  // when it will stop the workers

  const ProgressPage& page() const { return *page_; }

 private:
  void begin(std::uint64_t step);
  void end();

  ProgressPage* page_ = nullptr;
  bool numbered_ = false;  // begin_step() was called
  bool in_step_ = false;   // begun and not ended
  bool first_ended_ = false;
  std::function<void(std::uint64_t)> first_step_;
  std::function<bool()> begun_;
};

// Marks one operation of a communicator, well or badly ended. `progress` may be null.
class CollectiveScope {
 public:
  CollectiveScope(WorkerProgress* progress, CollectiveKind kind) : progress_(progress) {
    if (progress_ != nullptr) progress_->collective_begun(kind);
  }
  ~CollectiveScope() {
    if (progress_ != nullptr) progress_->collective_done();
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  WorkerProgress* const progress_;
};

}  // namespace ddprun
