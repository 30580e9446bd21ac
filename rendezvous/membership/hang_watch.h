// SPDX-License-Identifier: Apache-2.0
// The inquiry into a rank that stopped making progress: every node of the round is asked once, each
// answers or doesn't, then the answers are compared. One at a time, not too often. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/state.h"

namespace ddprun::membership {

class HangWatch {
 public:
  using TimePoint = Clock::time_point;
  static constexpr std::chrono::milliseconds kAnswerTime{3'000};
  // After an inquiry's end, until somebody's being stalled begins another.
  static constexpr std::chrono::milliseconds kPause{5'000};

  // Somebody is stalled. True: ask all nodes now, then began(); else an inquiry is open or is due
  // at deadline().
  bool wants_inquiry(TimePoint now);
  void began(std::set<NodeId> asked, TimePoint now);

  bool open() const { return answer_deadline_.has_value(); }
  // An answer of a node that was asked; true: it was the last one. Others are ignored.
  bool answered(NodeId node, std::vector<RankReport> ranks);
  const std::map<NodeId, std::vector<RankReport>>& answers() const { return answers_; }
  const std::set<NodeId>& missing() const { return missing_; }

  // The inquiry is over; `again_in`: when the next one is due by itself.
  void finished(std::optional<std::chrono::milliseconds> again_in, TimePoint now);

  // No round lives.
  void reset() { *this = HangWatch(); }

  // Of the open inquiry, or when the next one is due.
  std::optional<TimePoint> deadline() const { return open() ? answer_deadline_ : due_; }

 private:
  std::map<NodeId, std::vector<RankReport>> answers_;
  std::set<NodeId> missing_;
  std::optional<TimePoint> answer_deadline_;
  std::optional<TimePoint> due_;
  TimePoint not_before_{};
};

}  // namespace ddprun::membership
