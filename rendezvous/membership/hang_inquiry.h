// SPDX-License-Identifier: Apache-2.0
// Ranks that hang or lag. An inquiry asks every node of the round once, waits for the answers,
// compares them and tells. Only one is open at a time, and not too often. The caller acts upon a
// hang. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/hang_verdict.h"
#include "rendezvous/membership/roster.h"

namespace ddprun::membership {

// A hang that is acted upon.
struct Hang {
  Node* owner = nullptr;  // of the outlier; nullptr: nobody is to blame
  WorkerFailure failure;
  Clock::duration quiet{};
};

class HangInquiry {
 public:
  using TimePoint = Clock::time_point;
  using Optional = std::optional<TimePoint>;

  HangInquiry(const JobState& job, HangState& mine, Roster& roster)
      : job_(job), mine_(mine), roster_(roster) {}

  // A rank of the live round is stalled: begins an inquiry, unless one is open or comes soon.
  void stalled(const Node& node, const Stalled& message, TimePoint now, Actions& out);
  [[nodiscard]] std::optional<Hang> answered(const Node& node, const Inspection& message,
                                             TimePoint now, Actions& out);
  // due() has come: the open inquiry ends, or the next one begins.
  [[nodiscard]] std::optional<Hang> look(TimePoint now, Actions& out);
  Optional due() const { return is_open() ? answer_deadline_ : due_; }
  void reset();  // no round lives
  void records_wanted(Actions& out);

  static void step_times(Node& node, const StepTimes& message, bool is_current, TimePoint now);
  std::optional<TrainingStatus> training() const;  // over all nodes that said something
  std::vector<std::string> stragglers() const;

 private:
  enum class Telling { kInFull, kOneLine, kNothing };

  bool is_open() const { return answer_deadline_.has_value(); }
  void inquire(TimePoint now, Actions& out);
  std::optional<Hang> conclude(TimePoint now, Actions& out);
  // The ranks of Inspected are those of `owners`, in this order.
  Inspected take_answers(std::vector<NodeId>& owners);
  // A hang is told in full once. While it stays the same, a line follows each time that its length
  // has doubled. `global_rank`: its rank's, or -1.
  Telling how_to_tell(HangKind kind, int global_rank, Clock::duration quiet, TimePoint now);
  void tell(const HangFinding& finding, Telling telling, bool acts, Actions& out);

  const JobState& job_;
  HangState& mine_;
  Roster& roster_;
  std::map<NodeId, std::vector<RankReport>> answers_;
  std::set<NodeId> missing_;  // that were asked, and have not answered
  Optional answer_deadline_;  // of the open inquiry
  Optional due_;              // the next one, by itself
  TimePoint not_before_{};
  struct Told {
    HangKind kind;
    int global_rank;
    Clock::duration quiet;
    TimePoint at;
  };
  std::optional<Told> told_;          // the latest in this round
  std::uint64_t recorded_round_ = 0;  // the last one whose nodes were asked for their records
};

}  // namespace ddprun::membership
