// SPDX-License-Identifier: Apache-2.0
// ddprun: runs command line → plan → job → exit status. Jobs are on the heap, since they contain
// their buffers and a stack may be small (ulimit -s).
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/ending.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "common/standard_streams.h"
#include "launcher/cli.h"
#include "launcher/dry_run/dry_run.h"
#include "launcher/failure_report.h"
#include "launcher/gangs/gang_request.h"
#include "launcher/hosts/channel_agent.h"
#include "launcher/hosts/fleet_plan.h"
#include "launcher/prepare.h"
#include "launcher/scheduler_step.h"
#include "launcher/terminal_text.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;
using namespace ddprun::launcher;

// Prints one line for each problem. A problem of several lines has its own first word.
int refuse(const std::vector<std::string>& problems, ExitCode code = ExitCode::kUsage) {
  for (const std::string& problem : problems) {
    const bool complete = problem.ends_with('\n');
    const auto prefix = journal_prefix(LogLevel::kError);
    write_to_stderr(complete ? problem : concat(prefix, "ddprun: ", one_line(problem), "\n"));
  }
  membership::JobEnd verdict;
  verdict.exit_code = static_cast<int>(code);
  for (const std::string& problem : problems) {
    verdict.reason += (verdict.reason.empty() ? "" : "; ") + problem;
  }
  const std::string problem = leave_error_file(current_environment(), verdict);
  if (!problem.empty()) log_warning(problem);
  return verdict.exit_code;
}

// Prints the text that was asked for in place of a job. A reader may close early ("| head").
int print(const std::string& text, std::chrono::milliseconds patience = std::chrono::seconds(10)) {
  errno = EBADF;
  const bool is_written = !was_stdout_closed() && write_within(STDOUT_FILENO, text, patience);
  if (is_written || errno == EPIPE) return static_cast<int>(ExitCode::kOk);
  const std::string why = errno == 0 ? "nobody takes it" : errno_text(errno);
  return refuse({"can't write to stdout: " + why}, ExitCode::kOutputLost);
}

// Waits long for the reader, since a person may read it page by page.
int say(const DryRun& run, bool as_json) {
  return print(as_json ? to_json(run) : to_text(run), std::chrono::hours(1));
}

// Starts all of the job's nodes from this one (--hosts).
int run_from_here(const CommandLine& line, const Environment& environment, ServiceManager manager) {
  FleetPlan plan = plan_fleet(line, environment);
  for (const std::string& note : line.config.notes) log_info(note);
  for (const std::string& note : plan.notes) log_info(note);
  if (line.config.dry_run) {
    return say(dry_run_of_hosts(plan, line.config.json), line.config.json);
  }
  return run_on_hosts(std::move(plan), environment, line.config, std::move(manager));
}

// Has the standing agents of a ddprund run the job.
int run_by_agents(const CommandLine& line, const Environment& environment, ServiceManager manager) {
  GangRequest request = prepare_gang(line, environment);
  if (!request.problems.empty()) return refuse(request.problems);
  for (const std::string& note : request.notes) log_info(note);
  if (line.config.dry_run) return print(gang_to_text(request));
  return run_gang(std::move(request), line.config, std::move(manager));
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  set_log_sink(&log_to_stderr);
  try {
    ServiceManager manager = ServiceManager::take_from_environment();
    Environment environment = current_environment();
    set_log_level(log_level(environment));
    if (argc == 2 && std::string_view(argv[1]) == kFromChannel) {
      return run_channel_agent(std::move(environment));
    }
    const auto channel = under_channel(environment);
    CommandLine line = parse_command_line(
        {argv + 1, argv + argc}, environment,
        [&](const std::string& named) { return load_config_files(named, environment); },
        own_scheduler_step(environment));
    if (!line.problems.empty()) return refuse(line.problems);
    if (line.action == CommandLine::Action::kPrintText) {
      return print(line.text);
    }
    if (is_for_standing_agents(line, environment)) {
      return run_by_agents(line, environment, std::move(manager));
    }
    if (line.config.hosts.is_set()) return run_from_here(line, environment, std::move(manager));
    Preparation ready = prepare(std::move(line), std::move(environment), argv[0]);
    if (!ready.problems.empty()) return refuse(ready.problems);
    if (!ready.unfit.empty()) return refuse(ready.unfit, ExitCode::kRetryable);
    for (const std::string& note : ready.notes) log_info(note);
    if (ready.plan.config.dry_run) return say(dry_run_of_node(ready), ready.plan.config.json);
    ready.plan.channel = channel;
    return run_job(std::move(ready.plan), std::move(manager));
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return refuse({ending.text}, ending.code);
  }
}
