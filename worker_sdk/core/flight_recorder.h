// SPDX-License-Identifier: Apache-2.0
// The last operations of this process' communicators, to be read after a failure
// (docs/flight-recorder.md). The progress page has each communicator's current operation, too; the
// agent can read it even when this process no longer answers. Thread-safe: it takes one short lock,
// and no memory after the constructor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "common/operation_facts.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun {

enum class OperationState : std::uint8_t { kScheduled, kStarted, kCompleted, kFailed };

const char* to_string(OperationState state);

class FlightRecorder {
 public:
  static constexpr std::size_t kDefaultCapacity = 2'000;

  // An operation's number in this process, from 1. 0: it isn't recorded; every call accepts 0.
  using Ticket = std::uint64_t;

  struct Entry {
    Ticket number = 0;
    OperationFacts facts;
    OperationState state = OperationState::kScheduled;
    // 0: not yet.
    std::int64_t scheduled_ns = 0, started_ns = 0, ended_ns = 0;  // CLOCK_MONOTONIC
    std::chrono::nanoseconds on_device{0};  // time that it took there; 0: not known
  };
  struct CommunicatorName {
    std::string backend;
    int size = 0;
  };

  // `slots` has kOperationSlots slots, which are written while this object lives; null: none.
  // `capacity` 0: nothing is recorded, and no slot written.
  FlightRecorder(std::size_t capacity, OperationSlot* slots);

  std::size_t capacity() const { return ring_.size(); }

  // Returns the communicator's number, from 0. It is the same on every rank if all make the same
  // ones in the same order.
  std::uint32_t add_communicator(std::string backend, int size);

  // schedule(): the operation was asked for. start(): it begins to execute (NCCL: is enqueued).
  // complete(), fail(): it has ended. They ignore an operation that was overwritten by `capacity`
  // later ones.
  Ticket schedule(const OperationFacts& facts);
  void start(Ticket ticket);
  void complete(Ticket ticket, std::chrono::nanoseconds on_device = {}) {
    end(ticket, OperationState::kCompleted, on_device);
  }
  void fail(Ticket ticket) { end(ticket, OperationState::kFailed); }

  // Writes all slots again, after their memory has changed.
  void publish();

  // Oldest first.
  std::vector<Entry> entries() const;
  std::vector<CommunicatorName> communicators() const;

 private:
  Entry* find(Ticket ticket);
  void end(Ticket ticket, OperationState state, std::chrono::nanoseconds on_device = {});
  void publish(std::uint32_t communicator);

  OperationSlot* const slots_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Entry> ring_;  // operation n is at (n − 1) mod capacity
  Ticket last_ = 0;
  struct Tracked {
    CommunicatorName name;
    Ticket open = 0;         // the oldest operation that has started and not ended; 0: none
    std::uint64_t done = 0;  // sequence of the last collective that ended
  };
  std::vector<Tracked> communicators_;
};

// A communicator's report of its first failure.
struct OperationFailure {
  OperationFacts facts;
  std::string code;     // "timeout", "peer lost", … (ErrorCode)
  std::string message;  // the error's text
  // Ranks that did not come, if known; if they are many, the first ones.
  std::vector<int> missing;
  int size = 0;                         // the communicator's
  std::chrono::milliseconds waited{0};  // since the operation started
};

// Marks one scheduled operation of a communicator while it executes, for its observers. The
// operation has succeeded if complete() was called. `progress` may be null. Any thread.
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
