// SPDX-License-Identifier: Apache-2.0
// Compares what all ranks of a job are in, when some rank has stopped making progress: is it a
// hang, and whose? docs/internals/hang-detection.md has the rules. Pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

struct InspectedRank {
  int node_rank = 0;
  std::string host;
  RankReport report;
};

struct Inspected {
  std::vector<InspectedRank> ranks;
  std::vector<std::string> silent_nodes;  // that did not answer: "node 2 (gpu03, 10.0.0.3)"
  int world_size = 0;
  int num_finished = 0;  // ranks of world_size that have ended with success; not among `ranks`
};

enum class HangKind {
  kNoHang,   // somebody is still within the limit of its phase, or goes on again
  kStopped,  // the outlier is stopped by a signal or a debugger
  kWorks,    // the outlier computes or moves data, or all are in one collective: more time
  kHung,
};

struct HangFinding {
  HangKind kind = HangKind::kNoHang;
  // Index of Inspected::ranks; nullopt: nobody in particular is to blame, or nobody that was seen.
  std::optional<std::size_t> outlier;
  std::string text;       // one sentence with the evidence
  std::string operation;  // what the others wait for the outlier in; empty: not known
  std::vector<std::string>
      lines;  // that, state and stack of the outlier, else of the quietest rank
  // When to compare again; nullopt: when an agent says the next time that a rank is stalled.
  std::optional<std::chrono::milliseconds> again_in;
  std::chrono::milliseconds quiet{0};          // the suspect's
  bool ripe = false;                           // kHung for so long that it may be acted upon
  std::chrono::milliseconds acted_upon_at{0};  // kHung or kWorks, not ripe: quiet for so long
  // Every rank of the job was seen, and none computes or moves data but to wait for others.
  bool everyone_blocked = false;
};

HangFinding compare_ranks(const Inspected& inspected);

// Whether the round ends because of it.
bool acts_upon(const HangFinding& finding, const Inspected& inspected, HangAction action);

// The outlier's failure, as the report shows it; without an outlier it names no rank and no node.
// Only for kHung.
WorkerFailure hung_failure(const HangFinding& finding, const Inspected& inspected);

// "all_reduce #8812", "read() of /data/part-07", "main", "an unknown place": what ranks are grouped
// by.
std::string place_of(const RankReport& report);

// The inquiry into a rank that stopped making progress: every node of the round is asked once, each
// answers or doesn't, then the answers are compared. One at a time, not too often.
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
  // `quiet`. A hang is told in full once. Then, for as long as it is the same one, it is a line
  // each time that it has lasted twice as long as before.
  enum class Telling { kInFull, kOneLine, kNothing };
  Telling how_to_tell(HangKind kind, int global_rank, Clock::duration quiet, TimePoint now);

  // After a restart of the rendezvous: an answer to an inquiry of before says nothing of now.
  void count_on_from(std::uint64_t number) { number_ = number; }

  // No round lives.
  void reset();

  // The open inquiry's deadline; if none is open, when the next one is due.
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
