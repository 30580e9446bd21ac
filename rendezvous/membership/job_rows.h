// SPDX-License-Identifier: Apache-2.0
// One job as rows of the journal (docs/durability.md): "job", "state", "blame", "rounds",
// "failures", "record" and "nodes/ID". What a node said of its steps, and an inquiry that is open,
// are not kept: both are said again. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

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
  // Of a text, in place of a copy of it: two of one length and hash are taken for the same.
  struct Digest {
    std::size_t size = 0, hash = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  static Digest digest_of(const std::string& text) {
    return {text.size(), std::hash<std::string>()(text)};
  }

  bool is_new_ = true;
  bool has_record_ = false;
  std::string state_, blame_;                   // as written last
  std::unordered_map<NodeId, Digest> written_;  // each node's row, likewise
  std::uint64_t ledger_version_ = 0, failures_version_ = 0;
};

// The row "KEY" of a job is "jobs/NUMBER/KEY" in the journal.
std::string job_row_prefix(std::uint64_t number);
// The rows of each job, without that, by the job's number; others are left out.
std::map<std::uint64_t, journal::Rows> rows_by_job(const journal::Rows& rows);

// From the rows of one job, their keys without prefix; time is moved by `clock_shift`. Throws
// Error(kProtocol): one is missing or makes no sense.
JobState read_job(const journal::Rows& rows, Clock::duration clock_shift);

}  // namespace ddprun::membership
