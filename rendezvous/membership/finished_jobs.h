// SPDX-License-Identifier: Apache-2.0
// The jobs that are over and not forgotten yet, and their rows of the journal: "finished/N", N
// being the job's number. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/finished_job.h"

namespace ddprun::membership {

class FinishedJobs {
 public:
  // Each is kept for `keep_for` from its end; 0: none is.
  FinishedJobs(std::chrono::milliseconds keep_for, bool journalled)
      : keep_for_(keep_for), journalled_(journalled) {}

  // Of more than kMost the one that ended first goes.
  void add(std::uint64_t number, FinishedJob job);
  // Those whose time is over.
  void drop_old(Clock::time_point now);
  // When drop_old() is due; nullopt: there is none.
  std::optional<Clock::time_point> next_deadline() const;

  // Who ended first is first.
  std::vector<FinishedJob> all() const;
  std::size_t size() const { return jobs_.size(); }

  // Appends what changed since the last call.
  void take_changes(journal::Batch& batch);
  // Those of an earlier process; before add(). Times are moved by `clock_shift`, and nobody has
  // ended later than now. What makes no sense is erased: a line for each. `last_number` becomes the
  // largest number of them, where it is smaller.
  std::vector<std::string> restore(const journal::Rows& rows, Clock::duration clock_shift,
                                   Clock::time_point now, std::uint64_t& last_number);

  static constexpr std::size_t kMost = 1'000;

 private:
  void insert(std::uint64_t number, FinishedJob job);
  void drop_first();

  const std::chrono::milliseconds keep_for_;
  const bool journalled_;
  std::deque<std::pair<std::uint64_t, FinishedJob>> jobs_;  // by ends, then numbers
  journal::Batch changes_;
};

}  // namespace ddprun::membership
