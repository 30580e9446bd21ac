// SPDX-License-Identifier: Apache-2.0
// What a job leaves for programs that ask how it went: the events (--events, and torchrun's,
// --event-log-handler) and the report (--report). io thread only.
#pragma once

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/node_agent.h"
#include "common/clock.h"
#include "launcher/event_log.h"
#include "launcher/events/job_events.h"
#include "launcher/prepare.h"
#include "launcher/report/job_report.h"
#include "launcher/report/report_file.h"

namespace ddprun::launcher {

class JobRecords {
 public:
  // `plan` and `console` outlive this; `logs`: the agent's. Removes an earlier job's report. Throws
  // Error where the events' file can't be opened.
  JobRecords(const JobPlan& plan, Clock::time_point begun, agent::Console& console,
             std::shared_ptr<agent::LogTree> logs);

  // What it needs to hear of the node's agent.
  void listen(agent::NodeAgentEvents& events);

  // The job is over: the last events, and the report, unless that is for stdout. Returns what could
  // not be written, each in one line.
  std::vector<std::string> ended(const membership::agent_action::Exit& exit, int node_rank,
                                 const std::vector<std::string>& flight_recorders);

  // The report that is for stdout, behind all of the workers' output; likewise, also of what was
  // written behind ended().
  std::vector<std::string> print();

 private:
  void open_event_log(const JobPlan& plan);
  void open_events(const JobPlan& plan, std::shared_ptr<agent::LogTree> logs);

  agent::Console& console_;
  const Clock::time_point begun_;
  agent::LineSource event_lines_;  // --event-log-handler=console: among the workers' lines
  std::ofstream event_file_;       // --event-log-handler=file=…
  std::unique_ptr<EventLog> event_log_;
  std::unique_ptr<JobEvents> events_;  // null: none
  std::optional<ReportFile> file_;     // nullopt: no --report
  JobReport report_;
  std::string for_stdout_;
};

}  // namespace ddprun::launcher
