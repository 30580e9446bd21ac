// SPDX-License-Identifier: Apache-2.0
// What the rendezvous knows of one job. Plain data; job.cc changes it, formation.cc and verdicts.cc
// only read it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/channel.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::membership {

using NodeId = std::uint64_t;  // counts joins: a smaller one joined earlier

enum class NodePhase {
  kIdle,       // no process of any round: can be placed, or is a spare
  kStarting,   // StartRound was sent
  kRunning,    // all its workers run
  kSucceeded,  // all its workers exited with 0
  kStopping,   // StopRound was sent
};

inline constexpr std::size_t kNumNodePhases = 5;

enum class JobPhase {
  kForming,   // no live round: waiting for enough idle nodes
  kRunning,   // a round is live
  kStopping,  // the round is over, its workers are being stopped
  kEnded,     // JobEnd was sent: waiting for acknowledgements
};

struct Node {
  NodeId id = 0;
  Join join;
  ConnectionFacts facts;
  std::string key;  // node_key() of when it first joined
  std::string session;
  std::optional<ConnectionId> connection;
  Channel<RendezvousMessage> channel;
  NodePhase phase = NodePhase::kIdle;
  std::optional<int> node_rank;  // in the live or last round; spares have none
  Clock::time_point last_heard{};
  std::optional<Clock::time_point> grace_until;   // set while there is no connection
  std::optional<Clock::time_point> fenced_until;  // it was cut off: its workers live until then
  bool stepped = false;    // its workers have finished a step of the live round
  bool emptied = false;    // kSucceeded, and said that no process of the round is left
  bool warned = false;     // it is about to be taken away
  bool departed = false;   // kSucceeded: its workers left before their work was done
  bool preempted = false;  // excluded, for now only: it was warned
  bool excluded = false;   // its key is in JobState::excluded: goes when the round is stopped
  bool left = false;       // excluded, and ended by its user while its workers were being stopped
  // In the live round, as it said last.
  std::vector<RankStepTime> step_times;
  std::optional<TrainingStatus> training;
  bool gone = false;  // finished with success and lost afterwards: counts, but can't be placed
};

struct JobState {
  std::string run_id;
  JobSettings settings;
  JobTimeouts timeouts;
  JobPhase phase = JobPhase::kForming;
  std::uint64_t round = 0;                    // the live or last one
  int failures = 0;                           // rounds that a failed worker ended
  int node_losses = 0;                        // rounds that a lost or excluding node ended
  int preemptions = 0;                        // rounds that a warning ended
  int idle_rounds = 0;                        // in a row that ended without a finished step
  std::map<std::string, int> first_failures;  // how often a node was the first to fail, by node_key
  std::map<std::string, std::string> excluded;  // node_key → why it is kept out
  std::map<NodeId, Node> nodes;
  std::map<int, NodeId> rank_wishes;     // --node-rank → the last node that came with it
  std::vector<std::string> rank_labels;  // topology labels of the last round, by node rank
  std::optional<JobEnd> verdict;         // set in kEnded
};

inline bool is_member(const Node& node) { return node.node_rank.has_value(); }
inline bool is_placeable(const Node& node) {
  return node.phase == NodePhase::kIdle && node.connection.has_value() && !node.gone &&
         !node.excluded;
}
inline bool is_static(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend;
}

// The same machine when its agent comes again: host name and address.
std::string node_key(const Join& join, const ConnectionFacts& facts);

const char* to_string(NodePhase phase);
const char* to_string(JobPhase phase);

// "node 1 (gpu07, 10.0.0.7)"; a node that has no rank: "gpu07 (10.0.0.7)".
std::string describe(const Node& node);

}  // namespace ddprun::membership
