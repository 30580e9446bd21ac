// SPDX-License-Identifier: Apache-2.0
// What is remembered of a job that is over. Plain data. Pure.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/clock.h"

namespace ddprun::membership {

struct FinishedJob {
  std::string run_id;
  int exit_code = 0;
  std::string reason;         // empty when all succeeded
  std::string first_failure;  // of a worker, one line; empty: no worker's failure ended it
  std::string summary;        // of several rounds: where its time went, one line (ledger.h)
  std::uint64_t rounds = 0;
  int failures = 0, node_losses = 0, preemptions = 0;  // rounds that each of them ended
  // Of the last round, or, before the first one, that waited for it: "gpu07 (10.0.0.7)"; of many
  // only the first kMaxNames.
  std::vector<std::string> nodes;
  std::size_t num_nodes = 0;
  std::optional<Clock::time_point> began;  // nullopt: an older rendezvous took it in
  Clock::time_point ended{};

  static constexpr std::size_t kMaxNames = 64;
};

struct JobState;
struct JobEnd;

// `state` is the job's at its end.
FinishedJob finished_job(const JobState& state, const JobEnd& verdict, Clock::time_point now);

// For the journal (row_fields.h).
template <typename Self, typename Fields>
requires std::same_as<std::remove_const_t<Self>, FinishedJob>
void each_field(Self& job, Fields& fields) {
  fields("run_id", job.run_id);
  fields("exit_code", job.exit_code);
  fields("reason", job.reason);
  fields("first_failure", job.first_failure);
  fields("summary", job.summary);
  fields("rounds", job.rounds);
  fields("failures", job.failures);
  fields("node_losses", job.node_losses);
  fields("preemptions", job.preemptions);
  fields("nodes", job.nodes);
  fields("num_nodes", job.num_nodes);
  fields("began", job.began);
  fields("ended", job.ended);
}

}  // namespace ddprun::membership
