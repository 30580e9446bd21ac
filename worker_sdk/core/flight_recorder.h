// SPDX-License-Identifier: Apache-2.0
// The last operations of this process' communicators, to be read when something went wrong
// (docs/flight-recorder.md). The progress page has each communicator's current operation, too. The
// agent can read it even when this process no longer answers. Thread-safe: one short lock, and no
// memory is taken after the constructor.
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

  // Number of an operation among those of the process, from 1. 0: it isn't recorded, which every
  // call takes.
  using Ticket = std::uint64_t;

  struct Entry {
    Ticket number = 0;
    OperationFacts facts;
    OperationState state = OperationState::kScheduled;
    // 0: not yet.
    std::int64_t scheduled_ns = 0, started_ns = 0, ended_ns = 0;  // CLOCK_MONOTONIC
    std::chrono::nanoseconds on_device{0};  // so long it took there; 0: it isn't known
  };
  struct CommunicatorName {
    std::string backend;
    int size = 0;
  };

  // `slots`: kOperationSlots of them, written while this lives; null: none. 0 operations: nothing
  // is recorded, and no slot written.
  FlightRecorder(std::size_t capacity, OperationSlot* slots);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  std::size_t capacity() const { return ring_.size(); }

  // Its number, from 0: the same on every rank where all make the same ones in the same order.
  std::uint32_t add_communicator(std::string backend, int size);

  // It was asked for; it begins to execute (NCCL: is enqueued); it has ended. An operation that was
  // forgotten meanwhile (`capacity` later ones) is left alone.
  Ticket schedule(const OperationFacts& facts);
  void start(Ticket ticket);
  void complete(Ticket ticket, std::chrono::nanoseconds on_device = {}) {
    end(ticket, OperationState::kCompleted, on_device);
  }
  void fail(Ticket ticket) { end(ticket, OperationState::kFailed); }

  // Writes the slots anew: their memory has changed.
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
  std::string message;  // the error's
  // Ranks that did not come, where that is known; of many the first ones.
  std::vector<int> missing;
  int size = 0;                         // of the communicator
  std::chrono::milliseconds waited{0};  // since it started
};

// An operation of a communicator while it executes, for those who watch. Any thread.

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
