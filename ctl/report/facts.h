// SPDX-License-Identifier: Apache-2.0
// Derives figures from a record: how the job ended, how its time was spent, which ranks were slow,
// and what is missing. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ctl/report/record.h"

namespace ddprun::report {

struct RoundSpan {
  const RoundFacts* facts = nullptr;
  double begin = 0;        // when its rendezvous began
  PhaseSeconds seconds{};  // from the ledger, else estimated from events
  double length() const;
};

struct SlowRank {
  std::string rank, host;
  double seconds = 0;  // of a step; without waits for others where that is known
  double factor = 0;   // how many times the median of all ranks
};

struct Facts {
  bool is_over = false;  // the events or --report have a verdict
  bool succeeded = false;
  std::string state, reason, first_failure;
  std::optional<std::int64_t> exit_code;
  std::string program, began, ended;  // UTC
  std::string framework;              // of the last round that names any
  double seconds = 0;                 // the job's
  std::int64_t num_nodes = 0, world_size = 0, num_rounds = 0;
  std::optional<double> ettr;
  bool tells_steps = false;  // a worker told its progress
  bool has_ledger = false;
  PhaseSeconds phases{};
  std::vector<RoundSpan> rounds;
  std::vector<SlowRank> slow_ranks;  // the slowest first, only those that stand out
  std::vector<std::string> missing;  // sentences: what the record lacks
};

// `record` must outlive the result.
Facts facts_of(const Record& record);

// `ddprunctl report --json`: one object, one line; docs/run-report.md has the keys.
std::string facts_json(const Record& record, const Facts& facts);

// "worker_failed" → "worker failed".
std::string state_text(const std::string& state);

}  // namespace ddprun::report
