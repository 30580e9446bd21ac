// SPDX-License-Identifier: Apache-2.0
// Compares what all ranks of a job are in, when some rank has stopped making progress. Decides
// whether it is a hang, and whose. docs/internals/hang-detection.md has the rules. Pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace ddprun::membership
