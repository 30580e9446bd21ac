// SPDX-License-Identifier: Apache-2.0
// How far this worker is, in words of shared memory that its agent reads (docs/agent-socket.md): no
// system call, no lock. Without an agent the words are private and everything works the same.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/progress_page.h"

namespace ddprun {

class FlightRecorder;
class UniqueFd;
struct OperationFacts;
struct OperationFailure;

// How long each part of one step took; docs/ddp.md defines the parts. 0: not known.
struct StepParts {
  std::chrono::nanoseconds step{0};  // from one step's begin to the next one's
  std::chrono::nanoseconds forward{0}, backward{0};
  std::chrono::nanoseconds communication{0};
  std::chrono::nanoseconds exposed{0};  // the part of communication that nothing hid
  std::chrono::nanoseconds loader{0};   // time before the step, waiting for its data
  std::uint64_t bytes = 0;              // communicated in the step
};

// The loop's thread alone tells steps and phases; the rest may be called from any thread.
class WorkerProgress {
 public:
  // Uses a page that nobody reads. The recorder holds `num_recorded` operations; 0: none.
  explicit WorkerProgress(std::size_t num_recorded = 2'000);
  // Uses the agent's page. Throws Error(kSystem), or Error(kProtocol) if it is none of this
  // version.
  explicit WorkerProgress(const UniqueFd& memory);

  // Moves from a page that nobody reads to the agent's, with its contents. The loop's thread calls
  // it. Throws as the constructor does, and then keeps the old page.
  void move_to(const UniqueFd& memory);
  ~WorkerProgress();

  // Says that step `step` ≥ 1 of the job, counted over restarts, begins; the one before it is done.
  // The phase becomes train.
  void begin_step(std::uint64_t step);
  void end_step();

  // As above, for a loop that doesn't number its steps: they are counted from 1. No effect once
  // begin_step() was called.
  void count_step();
  void end_counted_step();

  void set_phase(ProgressPhase phase);

  // Reports this rank's loss and number of samples in the last step; GET /v1/jobs shows them. The
  // loop's thread.
  void report(double loss, std::uint64_t num_samples);

  // Adds the times of one more step; GET /v1/jobs shows them, too. A negative time counts as 0.
  // DistributedDataParallel calls it itself, on a GPU once the device has done the step. The loop's
  // thread.
  void add_parts(const StepParts& parts);

  // Sets the call for the end of the first step; it comes once. `step` is 0 if the loop doesn't
  // number its steps. `connecting` is the sum of add_connecting() until then.
  void on_first_step(
      std::function<void(std::uint64_t step, std::chrono::nanoseconds connecting)> call) {
    first_step_ = std::move(call);
  }

  // Sets a call for the beginning of each step, until it returns false.
  void on_begin(std::function<bool()> call) { begun_ = std::move(call); }

  // Adds the time that the training waited for its data.
  void add_loading(std::chrono::nanoseconds waited);

  // Adds the time to make a communicator, from the moment at which all of its ranks were there.
  void add_connecting(std::chrono::nanoseconds spent) { connecting_ += spent.count(); }

  void collective_begun(CollectiveKind kind);
  void collective_done();

  // The last operations of all communicators.
  FlightRecorder& recorder() { return *recorder_; }

  // Sets the call for the first failure of each communicator that is a time-out, a lost peer or
  // ranks that made different calls. The thread that found it calls. null: nothing is called.
  void on_operation_failed(std::function<void(const OperationFailure&)> call);
  void operation_failed(const OperationFacts& facts, const Error& error, std::vector<int> missing,
                        int size, std::chrono::milliseconds waited);

  StopRequest stop_request() const;         // the agent's
  Clock::time_point stop_deadline() const;  // when the agent will stop the workers

  // Returns whether the agent says that a worker of this round has died and that the others may go
  // on in place (docs/inplace.md). It stays true: the next round has a page of its own.
  bool peer_lost() const;

  const ProgressPage& page() const { return *page_; }

 private:
  void begin(std::uint64_t step);
  void end();

  ProgressPage* page_ = nullptr;
  bool numbered_ = false;  // begin_step() was called
  bool in_step_ = false;   // begun and not ended
  bool first_ended_ = false;
  std::function<void(std::uint64_t, std::chrono::nanoseconds)> first_step_;
  std::atomic<std::chrono::nanoseconds::rep> connecting_{0};
  std::function<bool()> begun_;
  const std::unique_ptr<FlightRecorder> recorder_;
  std::mutex failed_mutex_;
  std::function<void(const OperationFailure&)> failed_;  // guarded by failed_mutex_
};

}  // namespace ddprun
