// SPDX-License-Identifier: Apache-2.0
// --events: this node's record of its job, from the agent's events to the file (docs/events.md).
// io thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/node_agent.h"
#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "common/wall_time.h"
#include "launcher/events/event_lines.h"
#include "rendezvous/membership/agent_events.h"

namespace ddprun::launcher {

class JobEvents {
 public:
  // Writes the first line. `path` as given, opened now: throws Error(kInvalidArgument). Empty: in
  // the run's directory of `logs`, made now. `notice` is told once where lines are lost; `writer`
  // outlives this.
  JobEvents(EventFacts facts, Clock::time_point begun, const std::string& path,
            std::shared_ptr<agent::LogTree> logs, agent::LogWriter& writer,
            std::function<void(const std::string&)> notice);

  void listen(agent::NodeAgentEvents& events);
  void round_began(const membership::StartRound& round);
  void workers_run(const std::vector<pid_t>& pids);
  // The last line.
  void ended(const membership::JobEnd& verdict);

  // At the end, when the file was written: what `notice` has not been told. Empty: nothing.
  std::string unsaid() const;

 private:
  // What the log thread found, for the io thread.
  struct Trouble;

  void write(const std::string& lines);
  void queue(const std::string& lines);

  agent::LogWriter& writer_;
  const std::shared_ptr<Trouble> trouble_;  // second owner: the file
  EventLines lines_;
  std::unique_ptr<agent::LogWriter::File> file_;
  std::uint64_t num_left_out_ = 0;  // lines, since the last one that was queued
};

}  // namespace ddprun::launcher
