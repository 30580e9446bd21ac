// SPDX-License-Identifier: Apache-2.0
// The inquiry into a rank that stopped making progress: every node of the round is asked once, each
// answers or doesn't, then the answers are compared. One at a time, not too often. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/hang_verdict.h"
#include "rendezvous/membership/node.h"

namespace ddprun::membership {

class HangWatch {
 public:
  using TimePoint = Clock::time_point;
  static constexpr std::chrono::milliseconds kAnswerTime{3'000};
  // After an inquiry's end, until somebody's being stalled begins another.
  static constexpr std::chrono::milliseconds kPause{5'000};

  // Somebody is stalled. True: begin() now; else an inquiry is open or is due at deadline().
  bool wants_inquiry(TimePoint now);
  // Asks nobody yet: each node that is sent number() is to be named by asked().
  void begin(TimePoint now);
  void asked(NodeId node) { missing_.insert(node); }

  bool open() const { return answer_deadline_.has_value(); }
  std::uint64_t number() const { return number_; }  // of the latest inquiry; 0: none yet
  // An answer of a node that was asked; true: it was the last one. Others, and those to an earlier
  // inquiry, are ignored.
  bool answered(NodeId node, std::uint64_t inquiry, std::vector<RankReport> ranks);
  std::map<NodeId, std::vector<RankReport>> take_answers() { return std::move(answers_); }
  const std::set<NodeId>& missing() const { return missing_; }

  // The inquiry is over; `again_in`: when the next one is due by itself.
  void finished(std::optional<std::chrono::milliseconds> again_in, TimePoint now);

  // How much is to be told of a verdict of `kind` on the rank (-1: on none) that was quiet for
  // `quiet`: a hang in full once; then, for as long as it is the same one, a line each time that it
  // has lasted twice as long as when it was told last.
  enum class Telling { kInFull, kOneLine, kNothing };
  Telling how_to_tell(HangKind kind, int global_rank, Clock::duration quiet, TimePoint now);

  // After a restart of the rendezvous: an answer to an inquiry of before says nothing of now.
  void count_on_from(std::uint64_t number) { number_ = number; }

  // No round lives.
  void reset();

  // Of the open inquiry, or when the next one is due.
  std::optional<TimePoint> deadline() const { return open() ? answer_deadline_ : due_; }

 private:
  std::uint64_t number_ = 0;
  std::map<NodeId, std::vector<RankReport>> answers_;
  std::set<NodeId> missing_;
  std::optional<TimePoint> answer_deadline_;
  std::optional<TimePoint> due_;
  TimePoint not_before_{};
  struct Told {
    HangKind kind;
    int global_rank;
    Clock::duration quiet;
    TimePoint at;
  };
  std::optional<Told> told_;  // the latest in this round
};

}  // namespace ddprun::membership
