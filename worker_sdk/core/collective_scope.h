// SPDX-License-Identifier: Apache-2.0
// An operation of a communicator while it executes, for those who watch. Any thread.
#pragma once

#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

// Marks one scheduled operation of a communicator while it executes: it has ended well where
// complete() was called. `progress` may be null.
class CollectiveScope {
 public:
  CollectiveScope(WorkerProgress* progress, CollectiveKind kind, FlightRecorder::Ticket ticket)
      : progress_(progress), ticket_(ticket) {
    if (progress_ == nullptr) return;
    progress_->collective_begun(kind);
    progress_->recorder().start(ticket_);
  }
  ~CollectiveScope() {
    if (progress_ == nullptr) return;
    fail();
    progress_->collective_done();
  }
  void complete() {
    if (progress_ != nullptr) progress_->recorder().complete(ticket_);
    ticket_ = 0;
  }
  void fail() {
    if (progress_ != nullptr) progress_->recorder().fail(ticket_);
    ticket_ = 0;
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  WorkerProgress* const progress_;
  FlightRecorder::Ticket ticket_;
};

}  // namespace ddprun
