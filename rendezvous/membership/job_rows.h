// SPDX-License-Identifier: Apache-2.0
// One job as rows of the journal (docs/durability.md): "job", "state", "rounds", "failures" and
// "nodes/ID". What a node said of its steps, and an inquiry that is open, are not kept: both are
// said again. Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/state.h"

namespace ddprun::membership {

// What changed since the last collect(); the first time it is everything.
class JobRows {
 public:
  // Appends to `batch`; keys begin with `prefix` ("jobs/3/").
  void collect(JobState& job, const std::string& prefix, journal::Batch& batch);
  // The rows of a job that is no more.
  static void erase(JobState& job, const std::string& prefix, journal::Batch& batch);

 private:
  bool is_new_ = true;
  std::string state_;  // as written last
  std::uint64_t ledger_version_ = 0, failures_version_ = 0;
};

// From the rows of one job, their keys without prefix; time is moved by `clock_shift`. Throws
// Error(kProtocol): one is missing or makes no sense.
JobState read_job(const journal::Rows& rows, Clock::duration clock_shift);

}  // namespace ddprun::membership
