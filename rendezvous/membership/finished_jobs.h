// SPDX-License-Identifier: Apache-2.0
// The jobs that are over and not forgotten yet, and their rows in the journal. A row's key is
// "finished/N", where N is the job's number. Pure.
#pragma once

#include <boost/describe/class.hpp>
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

namespace ddprun::membership {

struct FinishedJob {
  std::string run_id;
  int exit_code = 0;
  std::string reason;         // empty when all succeeded
  std::string first_failure;  // one line; empty: no worker's failure ended it
  std::string summary;        // with several rounds: where its time went, one line (ledger.h)
  std::uint64_t rounds = 0;
  int failures = 0, node_losses = 0, preemptions = 0;  // rounds that each cause ended
  // The last round's nodes: "gpu07 (10.0.0.7)". If there was no round: the nodes that waited for
  // one. Only the first kMaxNames.
  std::vector<std::string> nodes;
  std::size_t num_nodes = 0;
  std::optional<Clock::time_point> began;  // nullopt: it began in an older rendezvous
  Clock::time_point ended{};

  static constexpr std::size_t kMaxNames = 64;
};

struct JobState;
struct JobEnd;

// Makes the record of a job from its `state` at its end.
FinishedJob finished_job(const JobState& state, const JobEnd& verdict, Clock::time_point now);

// For the journal (row_fields.h).
BOOST_DESCRIBE_STRUCT(FinishedJob, (),
                      (run_id, exit_code, reason, first_failure, summary, rounds, failures,
                       node_losses, preemptions, nodes, num_nodes, began, ended))

class FinishedJobs {
 public:
  // Each job is kept for `keep_for` after its end; 0: no job is kept.
  FinishedJobs(std::chrono::milliseconds keep_for, bool journalled)
      : keep_for_(keep_for), journalled_(journalled) {}

  // If there are more than kMost, the job that ended first is dropped.
  void add(std::uint64_t number, FinishedJob job);
  // Drops the jobs whose time is over.
  void drop_old(Clock::time_point now);
  // Returns when drop_old() is due; nullopt: there is no job.
  std::optional<Clock::time_point> next_deadline() const;

  // Returns all jobs, the one that ended first in front.
  std::vector<FinishedJob> all() const;
  // A place in that order. It allows a walk from job to job, even if jobs come and go meanwhile.
  using Place = std::pair<Clock::time_point, std::uint64_t>;  // end, number
  Place place_of(std::size_t index) const;                    // in front of that job
  // Returns the next job and moves the place behind it; null: there is none.
  const FinishedJob* after(Place& place) const;
  std::size_t size() const { return jobs_.size(); }

  // Appends the changes since the last call.
  void take_changes(journal::Batch& batch);
  // Takes the jobs of an earlier process; called before add(). Times are moved by `clock_shift`,
  // and no end is later than `now`. An invalid row is erased; the result has a line for each.
  // `last_number` becomes the largest job number, if it is smaller.
  std::vector<std::string> restore(const journal::Rows& rows, Clock::duration clock_shift,
                                   Clock::time_point now, std::uint64_t& last_number);

  static constexpr std::size_t kMost = 1'000;

 private:
  using Entry = std::pair<std::uint64_t, FinishedJob>;
  static Place place_of(const Entry& entry) { return {entry.second.ended, entry.first}; }
  void insert(std::uint64_t number, FinishedJob job);
  void drop_first();

  const std::chrono::milliseconds keep_for_;
  const bool journalled_;
  std::deque<Entry> jobs_;  // ordered by place
  journal::Batch changes_;
};

}  // namespace ddprun::membership
