// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_records.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/process_facts.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

JobReportOptions report_options(const JobPlan& plan) {
  const LaunchConfig& config = plan.config;
  return {.job_id = plan.rendezvous.job_id,
          .program = config.program,
          .arguments = config.program_args,
          .min_nodes = config.min_nodes,
          .max_nodes = config.max_nodes,
          .max_restarts = config.max_restarts,
          .num_workers = plan.num_workers,
          .host = host_name(),
          .pid = ::getpid()};
}

EventFacts event_facts(const JobPlan& plan) {
  const LaunchConfig& config = plan.config;
  return {.job_id = plan.rendezvous.job_id,
          .host = host_name(),
          .version = DDPRUN_VERSION,
          .pid = ::getpid(),
          .program = config.program,
          .num_workers = plan.num_workers,
          .min_nodes = config.min_nodes,
          .max_nodes = config.max_nodes,
          .max_restarts = config.max_restarts};
}

}  // namespace

JobRecords::JobRecords(const JobPlan& plan, Clock::time_point begun, agent::Console& console,
                       std::shared_ptr<agent::LogTree> logs)
    : console_(console),
      begun_(begun),
      report_(report_options(plan), begun,
              std::chrono::system_clock::now() -
                  std::chrono::duration_cast<WallTime::duration>(Clock::now() - begun)) {
  if (!plan.config.event_log.empty()) open_event_log(plan);
  open_events(plan, std::move(logs));
  if (plan.config.report.empty()) return;
  file_.emplace(plan.config.report);
  file_->begin();
}

void JobRecords::open_event_log(const JobPlan& plan) {
  constexpr std::string_view kFile = "file=";
  const std::string& where = plan.config.event_log;
  std::function<void(const std::string&)> write = [this](const std::string& line) {
    console_.lines(agent::OutputStream::kStderr).feed(event_lines_, line, Clock::now());
    console_.flush(agent::OutputStream::kStderr);
  };
  if (where.starts_with(kFile)) {
    const std::string path = where.substr(kFile.size());
    // A pipe without a reader would be waited for.
    const UniqueFd trial(::open(
        path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
    if (trial) event_file_.open(path, std::ios::app);
    if (!trial || !event_file_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--event-log-handler=" + where + ": " + errno_text(errno));
    }
    write = [this](const std::string& line) { event_file_ << line << std::flush; };
  }
  const bool is_static = plan.rendezvous.mode == RendezvousMode::kStatic;
  event_log_ = std::make_unique<EventLog>(
      EventLogOptions{.run_id = plan.rendezvous.job_id,
                      .role = plan.config.role,
                      .host = host_name(),
                      .rdzv_backend = is_static ? membership::kStaticBackend : "c10d",
                      .program = plan.program.argv.front(),
                      .num_workers = plan.num_workers},
      begun_, std::move(write));
}

// Where nobody says otherwise they go with the log files.
void JobRecords::open_events(const JobPlan& plan, std::shared_ptr<agent::LogTree> logs) {
  const std::string& path = plan.config.events;
  if (path == kNoEvents || (path.empty() && !logs)) return;
  events_ = std::make_unique<JobEvents>(event_facts(plan), begun_, path, std::move(logs),
                                        console_.log_writer(), console_.options().notice);
}

void JobRecords::listen(agent::NodeAgentEvents& events) {
  if (events_) events_->listen(events);
  events.round_began = [this](const membership::StartRound& round) {
    if (event_log_) event_log_->round_began(round, Clock::now());
    report_.round_began(round, Clock::now());
    if (events_) events_->round_began(round);
  };
  events.workers_run = [this](const std::vector<pid_t>& pids) {
    if (event_log_) event_log_->workers_run(pids, Clock::now());
    report_.workers_run(Clock::now());
    if (events_) events_->workers_run(pids);
  };
  events.worker_failed = [this](const membership::WorkerFailure& failure) {
    if (event_log_) event_log_->worker_failed(failure, Clock::now());
  };
}

std::vector<std::string> JobRecords::ended(const membership::agent_action::Exit& exit,
                                           int node_rank,
                                           const std::vector<std::string>& flight_recorders) {
  std::vector<std::string> problems;
  if (event_log_) event_log_->ended(exit.verdict, Clock::now());
  if (events_) events_->ended(exit.verdict);
  if (event_file_.is_open() && !event_file_) {
    problems.emplace_back("--event-log-handler: not all events could be written to their file");
  }
  if (!file_) return problems;
  std::string text =
      report_.text(exit.verdict, exit.local, node_rank, Clock::now(), flight_recorders);
  if (file_->is_stdout()) {
    for_stdout_ = std::move(text);
  } else if (const std::string problem = file_->write(text); !problem.empty()) {
    problems.push_back("--report=" + file_->path() + " was not written: " + problem);
  }
  return problems;
}

std::vector<std::string> JobRecords::print() {
  std::vector<std::string> problems;
  if (std::string problem = events_ ? events_->unsaid() : ""; !problem.empty()) {
    problems.push_back(std::move(problem));
  }
  if (for_stdout_.empty()) return problems;
  const std::string problem = file_->write(for_stdout_);
  if (!problem.empty()) problems.push_back("--report=- was not written: " + problem);
  return problems;
}

}  // namespace ddprun::launcher
