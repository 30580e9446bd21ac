// SPDX-License-Identifier: Apache-2.0
// A job's records for programs that ask how it went: the events (--events, docs/events.md, and
// torchrun's, --event-log-handler) and the report (--report).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/console.h"
#include "agent/node_agent.h"
#include "agent/output/log_queue.h"
#include "agent/output/log_tree.h"
#include "common/bounded_call.h"
#include "common/clock.h"
#include "common/unique_fd.h"
#include "launcher/events/event_lines.h"
#include "launcher/prepare.h"
#include "launcher/report/job_report.h"

namespace ddprun::launcher {

// Opens or makes it to write at its end; nobody waits for a pipe's reader. Invalid: errno says why
// (ENXIO: nobody reads the pipe). `path` leads into `run`, if that is open.
UniqueFd open_event_file(const std::string& path, const agent::LogFolder& run = {});

struct EventFileOptions {
  // Called again with each line while there is no file; what is wrong goes to `problem`.
  std::function<UniqueFd(std::string& problem)> open;
  // Told once, of the first line that isn't written: why. May be empty.
  std::function<void(const std::string& why)> lost;
  // How long a pipe's reader may take nothing; none for one that has kept a line waiting.
  std::chrono::milliseconds patience{1'000};
  // The next line says how many are lost, in a key of its own; else `lost` alone hears of it.
  bool says_lost = true;
};

// Appends whole lines to a file, one write each. A line that can't be written is lost and counted;
// the next one that can be written says how many. For the thread that writes log files.
class EventFile : public agent::LogSink {
 public:
  explicit EventFile(EventFileOptions options) : options_(std::move(options)) {}

  // Whole lines, each with its "\n". One that is a number: so many lines are missing there.
  void write(std::string_view lines) override;

 private:
  void write_line(std::string_view line);
  void tell(const std::string& why);
  std::string write_out(std::string_view& text);

  const EventFileOptions options_;
  UniqueFd fd_;
  std::string rest_;            // of a line that has begun in the file
  std::uint64_t num_lost_ = 0;  // since the last line that was written
  bool is_in_trouble_ = false;  // the last line wasn't written, or not all of it
  bool has_told_ = false;       // `lost` was called
};

class EventQueue;
class JobEvents;

// io thread only.
class JobRecords {
 public:
  // `plan` and `console` outlive this; `logs`: the agent's. Removes an earlier job's report. Throws
  // Error where the events' file can't be opened.
  JobRecords(const JobPlan& plan, Clock::time_point begun, agent::Console& console,
             std::shared_ptr<agent::LogTree> logs);
  ~JobRecords();

  // Sets its handlers in `events`, those of the node's agent.
  void listen(agent::NodeAgentEvents& events);

  // The job is over: the last events, and the report. That for stdout waits for finish().
  void ended(const membership::agent_action::Exit& exit, int node_rank,
             const std::vector<std::string>& flight_recorders);

  // Behind all of the workers' output: waits for the report, or prints it. Returns what could not
  // be written, each in one line.
  std::vector<std::string> finish();

 private:
  void open_event_log(const JobPlan& plan);
  void open_events(const JobPlan& plan, std::shared_ptr<agent::LogTree> logs);

  agent::Console& console_;
  const Clock::time_point begun_;
  agent::LineSource event_lines_;  // --event-log-handler=console: among the workers' lines
  std::unique_ptr<EventQueue> event_log_file_;  // --event-log-handler=file=…; null: none
  std::unique_ptr<EventLog> event_log_;
  std::unique_ptr<JobEvents> events_;  // null: none
  std::shared_ptr<ReportFile> file_;   // null: no --report; second owner: its writing
  JobReport report_;
  std::string for_stdout_;
  // The report's file may be on a dead server. The problem's second owner: its writing.
  std::shared_ptr<std::string> report_problem_ = std::make_shared<std::string>();
  std::unique_ptr<BoundedCall> report_writing_;
};

}  // namespace ddprun::launcher
