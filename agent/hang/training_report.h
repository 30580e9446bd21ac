// SPDX-License-Identifier: Apache-2.0
// How far this node's ranks are, when that is worth a message: it changed, and the last one was
// long enough ago. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/hang/rank_numbers.h"
#include "agent/hang/rank_sample.h"
#include "common/clock.h"
#include "rendezvous/membership/rank_report.h"

namespace ddprun::agent {

const char* to_string(WorkPhase phase);

class TrainingReport {
 public:
  static constexpr std::chrono::seconds kInterval{5};

  explicit TrainingReport(RankNumbers ranks = {}) : numbers_(std::move(ranks)) {}

  // `pages`: by local rank; nullopt: it writes none. Samples per second are those since the last
  // message, of ranks that go on and told samples. What steps consist of: of each rank the mean of
  // those since the last message; while there was none, as before. nullopt: nothing to say now.
  std::optional<membership::TrainingStatus> look(
      const std::vector<std::optional<ProgressWords>>& pages, Clock::time_point now);
  bool has_said() const { return said_at_.has_value(); }

 private:
  struct Rank {
    StepSums said;  // at the last message
    std::optional<membership::RankSteps> steps;
  };
  membership::StepSummary summarize(const std::vector<std::optional<ProgressWords>>& pages);

  const RankNumbers numbers_;
  std::optional<Clock::time_point> said_at_;
  std::string said_phase_;
  std::uint64_t said_step_ = 0;
  std::uint64_t said_reports_ = 0;
  // When and how many samples had been told at the first report since the last message.
  std::optional<Clock::time_point> counted_at_;
  std::uint64_t counted_ = 0;
  double rate_ = 0;
  std::vector<Rank> ranks_;  // by local rank
};

}  // namespace ddprun::agent
