// SPDX-License-Identifier: Apache-2.0
// Compares what all ranks of a job are doing, when a rank has stopped making progress. Decides
// whether it is a hang, and which rank caused it. docs/internals/hang-detection.md has the rules.
// Pure functions.
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
  std::vector<std::string> silent_nodes;  // without an answer: "node 2 (gpu03, 10.0.0.3)"
  int world_size = 0;
  int num_finished = 0;  // ranks that have ended with success; they aren't in `ranks`
};

enum class HangKind {
  kNoHang,   // the suspect is still within its phase's limit, or makes progress again
  kStopped,  // somebody holds the outlier: by a signal, in a debugger, at a prompt
  kWorks,    // a rank computes or moves data, or all are in one collective: they get more time
  kHung,
};

struct HangFinding {
  HangKind kind = HangKind::kNoHang;
  // Index in Inspected::ranks; nullopt: no single rank that was seen is to blame.
  std::optional<std::size_t> outlier;
  std::string text;       // one sentence with the evidence
  std::string operation;  // how others wait for the outlier (missing_from()); empty: not known
  // `operation`, then the state and stack of the outlier, else of the quietest rank.
  std::vector<std::string> lines;
  // The time until the next comparison; nullopt: an agent's next report of a stalled rank starts
  // it.
  std::optional<std::chrono::milliseconds> again_in;
  std::chrono::milliseconds quiet{0};          // the suspect's quiet time
  bool ripe = false;                           // kHung, and for so long that the job may react
  std::chrono::milliseconds acted_upon_at{0};  // kHung or kWorks, not ripe: after this quiet time
  // Every rank of the job was seen, and each is blocked or waits for others.
  bool everyone_blocked = false;
};

HangFinding compare_ranks(const Inspected& inspected);

// Returns whether the round ends because of the finding.
bool acts_upon(const HangFinding& finding, const Inspected& inspected, HangAction action);

// Returns the outlier's failure for the report. Without an outlier it names no rank and no node.
// For kHung only.
WorkerFailure hung_failure(const HangFinding& finding, const Inspected& inspected);

// Returns the place by which ranks are grouped: "all_reduce #8812", "read() of /data/part-07",
// "main", "an unknown place".
std::string place_of(const RankReport& report);

}  // namespace ddprun::membership
