// SPDX-License-Identifier: Apache-2.0
// Writes a job's records for other programs: the events (--events, docs/events.md, and torchrun's,
// --event-log-handler) and the report (--report).
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

// Opens or makes a file to append to. Doesn't wait for a pipe's reader. An invalid result: errno
// says why (ENXIO: nobody reads the pipe). If `run` is open, `path` leads into it.
UniqueFd open_event_file(const std::string& path, const agent::LogFolder& run = {});

struct EventFileOptions {
  // Opens the file. Called again with each line while there is no file; sets `problem` if it fails.
  std::function<UniqueFd(std::string& problem)> open;
  // Called once, with the reason why the first line was lost. May be empty.
  std::function<void(const std::string& why)> lost;
  // How long a pipe's reader may take nothing; 0 after it has kept a line waiting.
  std::chrono::milliseconds patience{1'000};
  // The next line has the number of lost lines, in an additional key; false: only `lost` is told.
  bool says_lost = true;
};

// Appends whole lines to a file, with one write each. A line that can't be written is lost and
// counted; the next written line has the count. For the thread that writes log files.
class EventFile : public agent::LogSink {
 public:
  explicit EventFile(EventFileOptions options) : options_(std::move(options)) {}

  // Takes whole lines with their "\n". A number in a line of its own means that so many lines are
  // missing.
  void write(std::string_view lines) override;

 private:
  void write_line(std::string_view line);
  void tell(const std::string& why);
  std::string write_out(std::string_view& text);

  const EventFileOptions options_;
  UniqueFd fd_;
  std::string rest_;            // the rest of a line that is partly in the file
  std::uint64_t num_lost_ = 0;  // since the last line that was written
  bool is_in_trouble_ = false;  // the last line wasn't written, or not all of it
  bool has_told_ = false;       // `lost` was called
};

class EventQueue;
class JobEvents;

// io thread only.
class JobRecords {
 public:
  // `plan` and `console` outlive this object; `logs` is the agent's. Removes an earlier job's
  // report. Throws Error if the events' file can't be opened.
  JobRecords(const JobPlan& plan, Clock::time_point begun, agent::Console& console,
             std::shared_ptr<agent::LogTree> logs);
  ~JobRecords();

  // Sets its handlers in `events`, which the node's agent calls.
  void listen(agent::NodeAgentEvents& events);

  // Writes the last events and the report: the job is over. A report for stdout waits for finish().
  void ended(const membership::agent_action::Exit& exit, int node_rank,
             const std::vector<std::string>& flight_recorders);

  // Called after all of the workers' output: waits for the report's file, or prints the report.
  // Returns a line for each thing that could not be written.
  std::vector<std::string> finish();

 private:
  void open_event_log(const JobPlan& plan);
  void open_events(const JobPlan& plan, std::shared_ptr<agent::LogTree> logs);

  agent::Console& console_;
  const Clock::time_point begun_;
  agent::LineSource event_lines_;  // for --event-log-handler=console: its lines among the workers'
  std::unique_ptr<EventQueue> event_log_file_;  // --event-log-handler=file=…; null: none
  std::unique_ptr<EventLog> event_log_;
  std::unique_ptr<JobEvents> events_;  // null: none
  std::shared_ptr<ReportFile> file_;   // null: no --report; its writing owns it, too
  JobReport report_;
  std::string for_stdout_;
  // The report's file may be on a dead server. Its writing owns the problem, too.
  std::shared_ptr<std::string> report_problem_ = std::make_shared<std::string>();
  std::unique_ptr<BoundedCall> report_writing_;
};

}  // namespace ddprun::launcher
