// SPDX-License-Identifier: Apache-2.0
#include "agent/round_workers.h"

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "agent/agent_socket.h"
#include "agent/observe/observer.h"
#include "agent/output/log_tree.h"
#include "agent/worker_environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

namespace {

// Returns the run's directory; empty: there is none.
std::string run_of(const LogFolder& attempt) {
  return std::filesystem::path(attempt.path).parent_path().string();
}

}  // namespace

RoundWorkers::RoundWorkers(boost::asio::io_context& io, Console& console,
                           const NodeAgentOptions& options, WorkerTalk& talk, Say say, Tell tell)
    : io_(io),
      console_(console),
      options_(options),
      talk_(talk),
      say_(std::move(say)),
      tell_(std::move(tell)) {}

void RoundWorkers::begin(const membership::StartRound& round) {
  talk_.begin(round.round, round.first_global_rank);
  node_rank_ = round.node_rank;
  group_.reset();
  leave_.reset();
  stopping_ = false;
}

void RoundWorkers::begin_logs(const membership::StartRound& round) {
  const std::string run = run_of(std::exchange(logs_, {}));
  if (!options_.logs) return;
  try {
    logs_ = begin_attempt(console_.log_writer(), options_.logs,
                          static_cast<int>(round.restart_count), options_.environment.num_workers);
  } catch (const Error& error) {
    tell_(LogLevel::kWarning,
          concat("no log files of this round: ", error.what(), "; its output goes to the console"));
  }
  if (!run.empty() && !logs_.path.empty() && run_of(logs_) != run) {
    tell_(LogLevel::kWarning,
          concat(run, " was moved or removed: log files are in ", run_of(logs_), " from now on"));
  }
}

void RoundWorkers::start(const membership::StartRound& round, WarmHelper* warm) {
  WorkerGroupOptions options = options_.workers;
  if (!options_.socket_parent.empty()) {
    options.socket_directory = AgentSocket::new_directory(options_.socket_parent);
  }
  options.logs = logs_;
  options.warm = warm;
  options.num_warm = options_.environment.num_workers;
  std::string problem;
  try {
    if (options_.cgroups) options.cgroup = options_.cgroups->begin_round();
  } catch (const Error& error) {
    problem = error.what();
  }
  auto where = places(options.socket_directory, options.cgroup);
  group_ =
      std::make_unique<WorkerGroup>(io_, console_, std::move(options), round.node_rank, events_);
  try {
    if (!problem.empty()) throw Error(ErrorCode::kSystem, problem);
    group_->launch_warden();  // first, so that it removes the directory if this process is killed
    talk_.open(std::move(where));
    group_->start(specs(round));
  } catch (const Error& error) {
    say_(event::WorkerFailed{round.round, failure_of(0, error.what()), Clock::now()});
  }
  pass_on_leave();
}

std::unique_ptr<ParkedWorkers> RoundWorkers::park(WarmHelper* warm,
                                                  std::function<void(const std::string&)> failed,
                                                  std::function<void()> gone) {
  talk_.close();
  ParkedWorkersOptions options{options_.workers, options_.environment, options_.command,
                               options_.socket_parent};
  options.group.warm = warm;
  options.group.num_warm = options_.environment.num_workers;
  if (options_.cgroups) options.group.cgroup = options_.cgroups->begin_round();
  return std::make_unique<ParkedWorkers>(
      io_, console_, talk_.pages(), std::move(options),
      ParkedWorkersEvents{talk_.socket_events(), std::move(failed), std::move(gone)});
}

bool RoundWorkers::adopt(ParkedWorkers& parked, const membership::StartRound& round) {
  talk_.expect(places(parked.socket_directory(), parked.cgroup()));
  std::vector<std::vector<std::string>> environments;
  for (WorkerSpec& worker : specs(round)) environments.push_back(std::move(worker.environment));
  try {
    talk_.begin_pages();
  } catch (const Error& error) {
    tell_(LogLevel::kWarning, concat("--prewarm: ", error.what()));
    return false;
  }
  if (!parked.place(environments)) {
    tell_(LogLevel::kWarning,
          "--prewarm: not every worker waits for its place; they are started anew");
    return false;
  }
  talk_.take(parked.take_socket());
  group_ = parked.take_group();
  group_->adopt(round.node_rank, round.first_global_rank, logs_, events_);
  return true;
}

// Socket, output and log files stay the same; the pages are the new round's.
std::optional<membership::WorkerFailure> RoundWorkers::go_on(
    const membership::StartRound& round, const std::optional<membership::WorkerFailure>& ended) {
  std::vector<int> left;
  const std::vector<pid_t> pids = group_->pids();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] != 0) left.push_back(static_cast<int>(i));
  }
  node_rank_ = round.node_rank;
  talk_.go_on(round.round, {round.first_global_rank, left});
  group_->go_on(round.node_rank, round.first_global_rank, events_);
  std::string problem;
  int at_fault = left.empty() ? 0 : left.front();
  try {
    talk_.begin_pages();
  } catch (const Error& error) {
    problem = error.what();
  }
  const int num_left = static_cast<int>(left.size());
  for (int i = 0; i < num_left && problem.empty() && !ended; ++i) {
    const int local_rank = left[static_cast<std::size_t>(i)];
    const auto place = place_variables(options_.environment, round, i, num_left, local_rank);
    if (!talk_.socket()->go_on(local_rank, place)) {
      problem = concat("rank ", talk_.ranks().of(local_rank), " does not wait for it any more");
      at_fault = local_rank;
    }
  }
  talk_.socket()->end_old_round();
  if (ended || problem.empty()) return ended;
  return failure_of(at_fault, "could not go on in place: " + problem);
}

WorkerTalk::Places RoundWorkers::places(const std::string& socket_directory,
                                        std::shared_ptr<const RoundCgroup> cgroup) const {
  return {socket_directory, logs_.path, std::move(cgroup), [this] { return pids(); }};
}

std::vector<WorkerSpec> RoundWorkers::specs(const membership::StartRound& round) const {
  std::vector<WorkerSpec> workers(static_cast<std::size_t>(options_.environment.num_workers));
  WorkerEnvironmentOptions environment = options_.environment;
  if (environment.network && round.num_nodes > 1) {  // asks the kernel only once
    environment.network = [found = environment.network(round.node_addr)](const std::string&) {
      return found;
    };
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    workers[i].global_rank = round.first_global_rank + local_rank;
    workers[i].local_rank = local_rank;
    workers[i].argv = worker_arguments(options_.command, local_rank);
    workers[i].environment =
        worker_environment(environment, round, local_rank, talk_.paths(local_rank));
  }
  return workers;
}

// Returns the failure of a worker that could not be started.
membership::WorkerFailure RoundWorkers::failure_of(int local_rank, const std::string& note) const {
  membership::WorkerFailure failure;
  failure.global_rank = talk_.ranks().of(local_rank);
  failure.local_rank = local_rank;
  failure.node_rank = node_rank_;
  failure.host = options_.machine.join.host;
  failure.exit_code = kExitNotExecutable;
  failure.note = note;
  return failure;
}

void RoundWorkers::lease(std::optional<Clock::time_point> until) {
  if (group_) group_->lease(until);
}

void RoundWorkers::ask_to_leave(Clock::time_point before, int signal_number) {
  leave_ = Leave{before, signal_number};
  pass_on_leave();
}

void RoundWorkers::pass_on_leave() {
  if (!leave_ || !group_) return;
  talk_.pages().request_stop(StopRequest::kPreemption, leave_->before);
  group_->ask_to_leave(leave_->signal_number);
}

bool RoundWorkers::stop(const membership::agent_action::StopWorkers& stop) {
  stopping_ = true;
  if (!group_) return false;
  const auto stop_now = [this, stop] {
    if (group_) group_->stop(stop.grace, stop.signal_number);
  };
  talk_.when_recorded(stop.after_records ? stop_now : std::function<void()>());
  if (!stop.after_records) stop_now();
  return true;
}

std::vector<pid_t> RoundWorkers::pids() const {
  return group_ ? group_->pids() : std::vector<pid_t>();
}

bool RoundWorkers::look(std::uint64_t round, int global_rank,
                        const std::function<void(LastOutput)>& done) const {
  return group_ && round == talk_.round() && group_->look(global_rank, done);
}

ParkedWorkers::ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                             ParkedWorkersOptions options, ParkedWorkersEvents events)
    : events_(std::move(events)), cgroup_(options.group.cgroup) {
  pages.begin_round(0, options.environment.num_workers);
  WorkerGroupEvents group;
  group.worker_failed = [this](const membership::WorkerFailure& failure, auto) {
    fail(concat("a worker (pid ", failure.pid, ") ended before its node had a place",
                failure.note.empty() ? "" : ": " + failure.note));
  };
  group.all_succeeded = [this] { fail("the program does not wait for a place"); };
  group.all_gone = [this] { events_.gone(); };
  options.group.socket_directory = AgentSocket::new_directory(options.socket_parent);
  const std::string directory = options.group.socket_directory;
  group_ =
      std::make_unique<WorkerGroup>(io, console, std::move(options.group), -1, std::move(group));
  group_->launch_warden();  // first, so that it removes the directory if this process is killed
  socket_ = std::make_unique<AgentSocket>(io, pages, directory, std::move(events_.socket));
  std::string observer;
  try {
    if (options.environment.observes) observer = put_observer(socket_->directory());
  } catch (const Error&) {  // the workers run as well without it
  }
  std::vector<WorkerSpec> workers(static_cast<std::size_t>(options.environment.num_workers));
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].local_rank = static_cast<int>(i);
    workers[i].global_rank = -1;
    workers[i].argv = worker_arguments(options.command, workers[i].local_rank);
    workers[i].environment =
        parked_environment(options.environment, workers[i].local_rank, socket_->path(), observer);
    started_with_.push_back(workers[i].environment);
  }
  group_->start(std::move(workers));
}

bool ParkedWorkers::place(const std::vector<std::vector<std::string>>& environments) {
  for (std::size_t i = 0; i < started_with_.size(); ++i) {
    if (failed_ || !socket_->waits_for_place(static_cast<int>(i))) return false;
  }
  for (std::size_t i = 0; i < started_with_.size(); ++i) {
    if (!socket_->assign(static_cast<int>(i),
                         environment_news(started_with_[i], environments.at(i)))) {
      return false;
    }
  }
  return true;
}

void ParkedWorkers::dismiss() { group_->stop(std::chrono::milliseconds{0}); }

void ParkedWorkers::fail(const std::string& why) {
  if (std::exchange(failed_, true)) return;
  events_.failed(why);
}

}  // namespace ddprun::agent
