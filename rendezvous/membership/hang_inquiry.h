// SPDX-License-Identifier: Apache-2.0
// Finds ranks that hang or lag. An inquiry asks every node of the round once, waits for the
// answers, compares them and tells the nodes the result. Only one is open at a time, with a pause
// after it. The caller acts upon a hang. Pure.
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

// A hang that the job reacts to.
struct Hang {
  Node* owner = nullptr;  // the outlier's node; nullptr: no node is to blame
  WorkerFailure failure;
  Clock::duration quiet{};
};

class HangInquiry {
 public:
  using TimePoint = Clock::time_point;
  using Optional = std::optional<TimePoint>;

  HangInquiry(const JobState& job, HangState& mine, Roster& roster)
      : job_(job), mine_(mine), roster_(roster) {}

  // Called when a rank of the live round is stalled. Begins an inquiry, unless one is open or comes
  // soon.
  void stalled(const Node& node, const Stalled& message, TimePoint now, Actions& out);
  [[nodiscard]] std::optional<Hang> answered(const Node& node, const Inspection& message,
                                             TimePoint now, Actions& out);
  // Called when due() has come: ends the open inquiry, or begins the next one.
  [[nodiscard]] std::optional<Hang> look(TimePoint now, Actions& out);
  Optional due() const { return is_open() ? answer_deadline_ : due_; }
  void reset();  // called when no round is live
  void records_wanted(Actions& out);

  static void step_times(Node& node, const StepTimes& message, bool is_current, TimePoint now);
  std::optional<TrainingStatus> training() const;  // over all nodes that reported
  std::vector<std::string> stragglers() const;

 private:
  enum class Telling { kInFull, kOneLine, kNothing };

  bool is_open() const { return answer_deadline_.has_value(); }
  void inquire(TimePoint now, Actions& out);
  std::optional<Hang> conclude(TimePoint now, Actions& out);
  // Returns the answers' ranks, and fills `owners` with the node of each rank.
  Inspected take_answers(std::vector<NodeId>& owners);
  // Returns how to report a hang: in full once, then in one line each time its length has doubled.
  // `global_rank` is the outlier's, or -1.
  Telling how_to_tell(HangKind kind, int global_rank, Clock::duration quiet, TimePoint now);
  void tell(const HangFinding& finding, Telling telling, bool acts, Actions& out);

  const JobState& job_;
  HangState& mine_;
  Roster& roster_;
  std::map<NodeId, std::vector<RankReport>> answers_;
  std::set<NodeId> missing_;  // the nodes that have not answered yet
  Optional answer_deadline_;  // the open inquiry's; nullopt: none is open
  Optional due_;              // when the next inquiry begins by itself
  TimePoint not_before_{};
  struct Told {
    HangKind kind;
    int global_rank;
    Clock::duration quiet;
    TimePoint at;
  };
  std::optional<Told> told_;          // the last report in this round
  std::uint64_t recorded_round_ = 0;  // the last round whose nodes got Record
};

}  // namespace ddprun::membership
