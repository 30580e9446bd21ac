// SPDX-License-Identifier: Apache-2.0
// --events: what happens to a job on this node, as lines of JSON (docs/events.md has the keys).
// Pure.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/worker_exit.h"
#include "common/wall_time.h"
#include "rendezvous/membership/agent_events.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

struct EventFacts {
  std::string job_id;
  std::string host;
  std::string version;   // of ddprun
  std::int64_t pid = 0;  // likewise
  std::string program;   // as typed
  int num_workers = 1;   // of this node
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
};

// Each call returns whole lines, each with its "\n"; maybe none.
class EventLines {
 public:
  EventLines(EventFacts facts, Clock::time_point begun) : facts_(std::move(facts)), begun_(begun) {}

  const std::string& host() const { return facts_.host; }

  std::string begin(const Moment& now) const;
  std::string round_began(const membership::StartRound& round, const Moment& now);
  // By local rank; 0: none since an earlier round.
  std::string workers_run(const std::vector<pid_t>& pids, const Moment& now) const;
  std::string worker_ended(const agent::WorkerExit& exit, const Moment& now) const;
  // A round that never began here, and what was said already, are no line.
  std::string round_over(const membership::agent_action::RoundOver& over, const Moment& now);
  // No line: until the next round this node waits.
  void workers_gone(const Moment& now) { waits_since_ = now.at; }
  // None where nothing has changed.
  std::string progressed(const std::vector<agent::RankProgress>& ranks, const Moment& now);
  std::string node_read(const membership::NodeReport& report, const Moment& now) const;
  std::string ended(const membership::JobEnd& verdict, const Moment& now) const;

 private:
  class Line;

  const EventFacts facts_;
  const Clock::time_point begun_;
  std::optional<membership::StartRound> round_;   // the live or last one
  std::optional<Clock::time_point> waits_since_;  // nullopt: since the begin
  std::optional<bool> over_in_place_;             // set: what round_over() has said of round_
  std::map<int, agent::ProgressWords> said_;      // by global rank, of round_
};

}  // namespace ddprun::launcher
