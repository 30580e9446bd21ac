// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <utility>

#include "agent/isolation/cgroup_tree.h"
#include "agent/output/last_exception.h"
#include "agent/warden/protocol.h"
#include "agent/warden_process.h"
#include "common/check.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/operation_facts.h"
#include "common/process_facts.h"
#include "common/signal_names.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

constexpr int kUncaughtException = 1;  // Python's exit code after one
// The time after which processes that workers left behind are named to the user.
constexpr std::chrono::milliseconds kStopNotice{2'000};

// Whether an error of exec or chdir lasts until somebody repairs the node or the command line.
bool is_lasting(int error_number) {
  constexpr std::array kLasting = {ENOENT, ENOTDIR, EACCES, EPERM, ENOEXEC, ELOOP, E2BIG};
  return std::find(kLasting.begin(), kLasting.end(), error_number) != kLasting.end();
}

// Fills in exit code, note, and whether a restart may help, from a report of kNotStarted. `cpus`
// describes the CPUs that the worker was to be bound to.
void explain_start_failure(const warden::Report& report, const WorkerSpec& worker,
                           const std::string& cpus, membership::WorkerFailure& failure) {
  const std::string& file = worker.argv.front();
  const bool is_missing = report.error_number == ENOENT || report.error_number == ENOTDIR;
  failure.exit_code = is_missing ? kExitNotFound : kExitNotExecutable;
  const std::string why = errno_text(report.error_number);
  switch (report.stage) {
    case warden::Stage::kExec:
      failure.lasting = is_lasting(report.error_number);
      failure.note = "could not exec " + file + ": " + why;
      // The file is there, so its interpreter is missing.
      if (report.error_number == ENOENT && ::access(file.c_str(), F_OK) == 0) {
        failure.exit_code = kExitNotExecutable;
        failure.note +=
            " (the file exists: the interpreter in its first line, or its loader, doesn't)";
      } else if (report.error_number == ENOEXEC) {
        failure.note +=
            " (a script needs a first line like #!/bin/sh, a program is of another machine)";
      }
      break;
    case warden::Stage::kCpus:
      failure.note = "could not be bound to CPUs " + cpus + ": " + why +
                     "; were they taken from this process since it started?";
      break;
    case warden::Stage::kCgroup:
      failure.note = "could not enter its cgroup: " + why + "; was it removed by somebody?";
      break;
    case warden::Stage::kDirectory:
      failure.lasting = is_lasting(report.error_number);
      failure.note = "could not enter the directory " + worker.working_directory + ": " + why;
      break;
    default:
      failure.exit_code = kExitNotExecutable;
      failure.note = "could not start a process for " + file + ": " + why;
      if (report.error_number == EAGAIN) {
        failure.note += " (a limit of processes: ulimit -u, or the cgroup's pids.max)";
      }
  }
}

// Returns why a worker that the helper has forked is not warm; empty: it is.
std::string why_fresh(const warden::Report& report) {
  if (report.stage != warden::Stage::kFresh) return "";
  switch (static_cast<warden::Fresh>(report.error_number)) {
    case warden::Fresh::kCpus:
      return "it is bound to CPUs, and OMP_NUM_THREADS is not set";
    case warden::Fresh::kPythonVariables:
      return "its PYTHON… variables are not the helper's";
    case warden::Fresh::kVariables:
      return "a variable that an import has set differs";
    case warden::Fresh::kProgram:
      return "its program is no source text";
  }
  return "it is a fresh Python";
}

using warden::Report;
using warden::ReportType;
using warden::RequestType;
using warden::Stage;

// Clock is CLOCK_MONOTONIC.
Clock::time_point seen_at(const Report& report) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(report.at_ns)));
}

enum class WorkerState { kWaiting, kStarting, kRunning, kEnded };

struct Worker {
  WorkerSpec spec;
  WorkerState state = WorkerState::kWaiting;
  pid_t pid = 0;
  std::optional<std::string> why_cold;   // as in WorkerGroup::why_cold()
  std::shared_ptr<WorkerOutput> output;  // shared with its reads under way
};

}  // namespace

WorkerExit exit_of(const membership::WorkerFailure& failure, ExitKind kind) {
  WorkerExit exit{failure.global_rank, failure.local_rank, static_cast<pid_t>(failure.pid), kind};
  exit.signal_number = failure.signal_number;
  if (failure.signal_number == 0) exit.exit_code = failure.exit_code;
  return exit;
}

// Owned by the group, and by the io context's handlers under way until they have seen `closed_`.
class WorkerGroup::Impl : public std::enable_shared_from_this<WorkerGroup::Impl> {
 public:
  Impl(boost::asio::io_context& io, Console& console, WorkerGroupOptions options, int node_rank,
       WorkerGroupEvents events)
      : io_(io),
        console_(console),
        options_(std::move(options)),
        node_rank_(node_rank),
        events_(std::move(events)),
        spare_timer_(io),
        grace_timer_(io),
        kill_timer_(io) {}

  void launch_warden();
  void start(std::vector<WorkerSpec> specs);
  void stop(std::chrono::milliseconds grace, int signal_number);
  void lease(std::optional<Clock::time_point> until);
  void adopt(int node_rank, int first_global_rank, const LogFolder& logs, WorkerGroupEvents events);
  void go_on(int node_rank, int first_global_rank, WorkerGroupEvents events);
  bool any_ended_well() const { return num_ended_well_ > 0; }
  bool look(int global_rank, const std::function<void(LastOutput)>& done) const;
  std::vector<pid_t> pids() const;
  std::vector<pid_t> started() const;
  std::vector<std::optional<std::string>> why_cold() const;
  void ask_to_leave(int signal_number);
  void close();

 private:
  void spawn_more();
  void spawn(std::size_t index);
  std::shared_ptr<RoundLogs> round_logs(const LogFolder& folder);
  bool has_stdin(const Worker& worker) const;
  std::string hint(const Worker& worker, const std::vector<std::string>& last_lines) const;
  WorkerPlace place_of(const Worker& worker) const {
    return {worker.spec.local_rank, worker.spec.global_rank, node_rank_};
  }
  void on_report(const Report& report);
  void on_started(Worker& worker, const Report& report);
  void on_not_started(Worker& worker, const Report& report);
  void on_exited(Worker& worker, int wait_status, Clock::time_point at);
  void on_warden_gone(int wait_status);
  void worker_lost(Worker& worker, const std::string& why);
  void fail(Worker& worker, membership::WorkerFailure failure, Clock::time_point at);
  membership::WorkerFailure describe(const Worker& worker) const;
  void check_done();
  void say_who_is_killed(std::chrono::milliseconds grace) const;
  void wait_for_what_is_left();
  void wait_for_the_killed(Clock::time_point killed_at, bool is_last);
  std::string remaining() const;
  void give_up(const std::string& who);
  void finish();
  void finish_when_empty();
  template <typename Function>
  void later(Function function);

  boost::asio::io_context& io_;
  Console& console_;
  const WorkerGroupOptions options_;
  int node_rank_;
  WorkerGroupEvents events_;

  std::vector<Worker> workers_;
  std::shared_ptr<RoundLogs> logs_;            // null: no files; shared with the workers' outputs
  std::shared_ptr<WardenProcess> warden_;      // shared with its waits under way
  std::shared_ptr<OrphanSweep> orphan_sweep_;  // the same
  std::string why_cold_;  // of all workers; empty: each worker has its own reason
  UniqueFd null_fd_;
  boost::asio::steady_timer spare_timer_;  // for processes that were left to their parents
  boost::asio::steady_timer grace_timer_;
  boost::asio::steady_timer kill_timer_;   // for processes that were stopped, later for killed ones
  std::shared_ptr<EmptyWait> empty_wait_;  // shared with its waits under way
  std::optional<Clock::time_point> kill_at_;     // set: stop() was called
  std::optional<Clock::time_point> stopped_at_;  // set: the time of the first stop()
  std::size_t next_to_spawn_ = 0;
  std::size_t num_unanswered_ = 0;
  std::size_t num_running_ = 0;  // that have ever run
  std::size_t num_ended_well_ = 0;
  std::size_t num_failed_ = 0;  // in earlier rounds of a group that went on
  bool leaving_allowed_ = false;
  bool any_left_ = false;     // a worker has exited with 75 when that was allowed
  bool warden_gone_ = false;  // it has ended, and none of its processes is left
  bool empty_ = false;        // the warden reported it after stop()
  bool finished_ = false;     // all_gone was called
  bool closed_ = false;       // the group's owner has released it
};

template <typename Function>
void WorkerGroup::Impl::later(Function function) {
  boost::asio::post(io_, [self = shared_from_this(), function = std::move(function)] {
    if (!self->closed_) function(*self);
  });
}

void WorkerGroup::Impl::launch_warden() {
  if (warden_ || kill_at_) return;
  const std::weak_ptr<Impl> weak = weak_from_this();
  WardenProcess::Events events;
  events.report = [weak](const Report& report) {
    const auto self = weak.lock();
    if (self && !self->closed_) self->on_report(report);
  };
  events.gone = [weak](int wait_status) {
    const auto self = weak.lock();
    if (self && !self->closed_) self->on_warden_gone(wait_status);
  };
  const std::string path =
      options_.warden_path.empty() ? WardenProcess::default_path() : options_.warden_path;
  warden_ = WardenProcess::launch(io_, path, options_.socket_directory, std::move(events),
                                  options_.cgroup.get(), options_.warm, options_.num_warm);
  if (options_.warm != nullptr) why_cold_ = options_.warm->why_cold();
}

void WorkerGroup::Impl::start(std::vector<WorkerSpec> specs) {
  DDPRUN_CHECK(workers_.empty() && !specs.empty());
  if (kill_at_) return;  // it was stopped before it began
  null_fd_.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd_) throw_system_error("/dev/null", errno);
  logs_ = round_logs(options_.logs);
  launch_warden();
  for (WorkerSpec& spec : specs) {
    DDPRUN_CHECK(!spec.argv.empty());
    workers_.emplace_back().spec = std::move(spec);
  }
  spawn_more();
}

// Sends a few requests at a time. The warden's answers make room, so that neither its socket nor
// the limit of descriptors in flight is ever full.
void WorkerGroup::Impl::spawn_more() {
  while (!kill_at_ && !warden_gone_ && next_to_spawn_ < workers_.size() &&
         num_unanswered_ < warden::kMaxUnanswered) {
    spawn(next_to_spawn_++);
  }
}

std::shared_ptr<RoundLogs> WorkerGroup::Impl::round_logs(const LogFolder& folder) {
  if (folder.path.empty()) return nullptr;
  return std::make_shared<RoundLogs>(console_, options_.output, folder);
}

bool WorkerGroup::Impl::has_stdin(const Worker& worker) const {
  const std::optional<int>& chosen = options_.output.stdin_rank;
  const bool is_its_own = !options_.several_workers || options_.output.inherit;
  return console_.stdin_is_ours() &&
         (!chosen && is_its_own ? worker.spec.global_rank >= 0
                                : worker.spec.global_rank == chosen.value_or(0));
}

// Returns how to repair it: a module that its Python lacks, or a flag that gives it a stdin. Empty:
// there is no hint.
std::string WorkerGroup::Impl::hint(const Worker& worker,
                                    const std::vector<std::string>& last_lines) const {
  const std::string_view exception = last_exception(last_lines);
  const std::string& program = worker.spec.argv.front();
  const bool is_python = program.substr(program.rfind('/') + 1).starts_with("python");
  const bool has_no_such_module =
      !last_lines.empty() && last_lines.back().find(": No module named ") != std::string::npos;
  if (is_python && (exception.starts_with("ModuleNotFoundError: ") || has_no_such_module)) {
    return concat("it was run by ", program,
                  "; activate the environment that has the module, or name its Python in "
                  "PYTHON_EXEC");
  }
  if (has_stdin(worker) || !console_.stdin_is_ours() || !is_of_empty_stdin(exception)) return {};
  return concat(
      "it asked for input (breakpoint(), input()), but this rank has no stdin; "
      "--stdin-rank=",
      worker.spec.global_rank, " gives it ddprun's");
}

void WorkerGroup::Impl::spawn(std::size_t index) {
  Worker& worker = workers_[index];
  worker.output = std::make_shared<WorkerOutput>(io_, console_, options_.output,
                                                 options_.several_workers, logs_, place_of(worker));
  try {
    const WorkerStreams streams = worker.output->open();
    const auto own_or_null = [&](int fd) {
      return ::fcntl(fd, F_GETFD) >= 0 ? fd : null_fd_.get();
    };
    const auto choose = [&](const UniqueFd& pipe, OutputStream stream) {
      return pipe ? pipe.get() : own_or_null(console_.fd(stream));
    };
    WardenSpawn request;
    request.worker = static_cast<std::uint32_t>(index);
    request.argv = &worker.spec.argv;
    request.environment = &worker.spec.environment;
    request.working_directory = &worker.spec.working_directory;
    request.stdin_fd =
        has_stdin(worker) ? own_or_null(console_.options().stdin_fd) : null_fd_.get();
    request.stdout_fd = choose(streams.stdout_fd, OutputStream::kStdout);
    request.stderr_fd = choose(streams.stderr_fd, OutputStream::kStderr);
    if (!options_.cpus.empty()) {
      request.cpus = options_.cpus.at(static_cast<std::size_t>(worker.spec.local_rank));
    }
    if (options_.cgroup) request.cgroup_fd = options_.cgroup->worker_fd(worker.spec.local_rank);
    warden_->spawn(request);
    worker.state = WorkerState::kStarting;
    ++num_unanswered_;
  } catch (const Error& error) {
    later([index, why = std::string(error.what())](Impl& self) {
      membership::WorkerFailure failure = self.describe(self.workers_[index]);
      failure.exit_code = kExitNotExecutable;
      failure.note = "could not be started: " + why;
      self.fail(self.workers_[index], std::move(failure), Clock::now());
    });
  }
}

void WorkerGroup::Impl::stop(std::chrono::milliseconds grace, int signal_number) {
  if (finished_) return;
  const bool is_first = !kill_at_;
  const Clock::time_point at = Clock::now() + grace;
  if (!is_first && at >= *kill_at_) return;
  kill_at_ = at;
  if (is_first) stopped_at_ = Clock::now();
  if (!warden_ || warden_gone_) {
    later([](Impl& self) { self.check_done(); });
    return;
  }
  if (is_first) {
    warden_->request(RequestType::kStop, signal_number);
    wait_for_what_is_left();
    run_after(spare_timer_, grace / 2, [self = shared_from_this()] {
      if (self->closed_ || self->finished_ || self->warden_gone_ || self->empty_) return;
      self->warden_->request(RequestType::kStop);
    });
  }
  run_at(grace_timer_, at, [self = shared_from_this(), grace] {
    if (self->closed_ || self->finished_ || self->warden_gone_) return;
    if (grace.count() > 0) self->say_who_is_killed(grace);
    self->warden_->request(RequestType::kKill);
    self->wait_for_the_killed(Clock::now(), false);
  });
}

void WorkerGroup::Impl::lease(std::optional<Clock::time_point> until) {
  if (warden_ && !warden_gone_) warden_->lease(until);
}

// Does nothing at a second call: the workers' handlers are at work already.
void WorkerGroup::Impl::ask_to_leave(int signal_number) {
  if (std::exchange(leaving_allowed_, true) || !warden_ || warden_gone_ || kill_at_) return;
  warden_->request(RequestType::kWarn, signal_number);
}

void WorkerGroup::Impl::adopt(int node_rank, int first_global_rank, const LogFolder& logs,
                              WorkerGroupEvents events) {
  node_rank_ = node_rank;
  logs_ = round_logs(logs);
  events_ = std::move(events);
  events_.all_running = nullptr;
  for (Worker& worker : workers_) {
    worker.spec.global_rank = first_global_rank + worker.spec.local_rank;
    if (worker.output) worker.output->set_place(place_of(worker), logs_);
  }
}

void WorkerGroup::Impl::go_on(int node_rank, int first_global_rank, WorkerGroupEvents events) {
  node_rank_ = node_rank;
  events_ = std::move(events);
  events_.all_running = nullptr;
  num_failed_ = 0;
  int next_rank = first_global_rank;
  for (Worker& worker : workers_) {
    if (worker.state == WorkerState::kEnded) {
      ++num_failed_;
      worker.spec.global_rank = -1;
      if (worker.pid > 0 && warden_ && !warden_gone_) warden_->clear(worker.pid);
      worker.pid = 0;  // only once: another process may get the number
      continue;
    }
    worker.spec.global_rank = next_rank++;
    if (worker.output) worker.output->set_place(place_of(worker), logs_);
  }
}

bool WorkerGroup::Impl::look(int global_rank, const std::function<void(LastOutput)>& done) const {
  const auto worker = std::ranges::find_if(workers_, [&](const Worker& each) {
    return each.spec.global_rank == global_rank && each.output != nullptr;
  });
  if (worker == workers_.end()) return false;
  worker->output->look(done);
  return true;
}

std::vector<pid_t> WorkerGroup::Impl::pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) {
    pids.push_back(worker.state == WorkerState::kRunning ? worker.pid : 0);
  }
  return pids;
}

std::vector<pid_t> WorkerGroup::Impl::started() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.pid);
  return pids;
}

std::vector<std::optional<std::string>> WorkerGroup::Impl::why_cold() const {
  std::vector<std::optional<std::string>> all;
  for (const Worker& worker : workers_) {
    all.push_back(worker.pid == 0 ? std::nullopt : worker.why_cold);
  }
  return all;
}

void WorkerGroup::Impl::close() {
  closed_ = true;
  spare_timer_.cancel();
  grace_timer_.cancel();
  kill_timer_.cancel();
  if (warden_) warden_->abandon();
  if (orphan_sweep_) orphan_sweep_->abandon();
  if (empty_wait_) empty_wait_->abandon();
  for (Worker& worker : workers_) {
    if (worker.output) worker.output->abandon();
  }
}

void WorkerGroup::Impl::on_report(const Report& report) {
  const auto self = shared_from_this();  // an event may destroy the group
  if (report.type == ReportType::kReady) return;
  if (report.type == ReportType::kEmpty) {
    empty_ = true;
    return check_done();
  }
  if (report.type == ReportType::kFenced) {
    const bool is_news = !kill_at_;
    stop(std::chrono::milliseconds{0}, SIGTERM);
    // A worker that the warden kills has not failed.
    stopped_at_ = std::min(*stopped_at_, seen_at(report));
    if (is_news && events_.fenced) events_.fenced();
    return;
  }
  DDPRUN_CHECK(report.worker < workers_.size());
  Worker& worker = workers_[report.worker];
  switch (report.type) {
    case ReportType::kStarted:
      return on_started(worker, report);
    case ReportType::kNotStarted:
      return on_not_started(worker, report);
    case ReportType::kExited:
      return on_exited(worker, report.wait_status, seen_at(report));
    case ReportType::kReady:
    case ReportType::kEmpty:
    case ReportType::kFenced:
      break;
  }
}

void WorkerGroup::Impl::on_started(Worker& worker, const Report& report) {
  worker.pid = report.pid;
  if (options_.warm != nullptr) {
    worker.why_cold = why_cold_.empty() ? why_fresh(report) : why_cold_;
  }
  worker.state = WorkerState::kRunning;
  --num_unanswered_;
  ++num_running_;
  spawn_more();
  if (num_running_ == workers_.size() && events_.all_running) events_.all_running();
}

void WorkerGroup::Impl::on_not_started(Worker& worker, const Report& report) {
  --num_unanswered_;
  spawn_more();
  membership::WorkerFailure failure = describe(worker);
  const auto rank = static_cast<std::size_t>(worker.spec.local_rank);
  const std::string cpus = options_.cpus.empty() ? "" : to_text(options_.cpus.at(rank));
  explain_start_failure(report, worker.spec, cpus, failure);
  fail(worker, std::move(failure), seen_at(report));
}

void WorkerGroup::Impl::on_exited(Worker& worker, int wait_status, Clock::time_point at) {
  worker.output->worker_ended();
  const bool left = leaving_allowed_ && WIFEXITED(wait_status) &&
                    WEXITSTATUS(wait_status) == static_cast<int>(ExitCode::kRetryable);
  if (left || (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)) {
    worker.state = WorkerState::kEnded;
    wait_for_what_is_left();
    ++num_ended_well_;
    any_left_ |= left;
    if (events_.ended) {
      events_.ended({worker.spec.global_rank, worker.spec.local_rank, worker.pid,
                     ExitKind::kSuccess, WEXITSTATUS(wait_status), 0});
    }
    const auto& all_ended = any_left_ ? events_.all_left : events_.all_succeeded;
    if (num_ended_well_ + num_failed_ == workers_.size() && !kill_at_ && all_ended) all_ended();
    return;
  }
  membership::WorkerFailure failure = describe(worker);
  if (WIFSIGNALED(wait_status)) {
    failure.signal_number = WTERMSIG(wait_status);
  } else {
    failure.exit_code = WEXITSTATUS(wait_status);
    failure.note = hint(worker, failure.last_lines);
    if (failure.exit_code == kUncaughtException && worker.output) {
      failure.traceback = worker.output->hidden_traceback();
    }
  }
  fail(worker, std::move(failure), at);
}

membership::WorkerFailure WorkerGroup::Impl::describe(const Worker& worker) const {
  membership::WorkerFailure failure;
  failure.global_rank = worker.spec.global_rank;
  failure.local_rank = worker.spec.local_rank;
  failure.node_rank = node_rank_;
  failure.host = host_name();
  failure.pid = worker.pid;
  if (const auto& why = worker.why_cold) failure.start = why->empty() ? "warm" : "cold: " + *why;
  if (worker.output) failure.last_lines = worker.output->last_lines();
  return failure;
}

void WorkerGroup::Impl::fail(Worker& worker, membership::WorkerFailure failure,
                             Clock::time_point at) {
  worker.state = WorkerState::kEnded;
  wait_for_what_is_left();
  // A worker that ends after the call of stop() is a victim, not a failure.
  const bool is_victim = stopped_at_ && at >= *stopped_at_;
  if (is_victim && events_.ended) events_.ended(exit_of(failure, ExitKind::kStopped));
  if (!is_victim && events_.worker_failed) events_.worker_failed(std::move(failure), at);
}

void WorkerGroup::Impl::on_warden_gone(int wait_status) {
  const auto self = shared_from_this();
  if (finished_) return;  // it was given up
  if (empty_) {           // it was told to end
    warden_gone_ = true;
    return finish_when_empty();
  }
  const std::string how = WIFSIGNALED(wait_status)
                              ? "was ended by " + signal_name(WTERMSIG(wait_status))
                              : "ended with status " + std::to_string(WEXITSTATUS(wait_status));
  const std::string why = "its warden process (ddprun-warden, pid " +
                          std::to_string(warden_->pid()) + ") " + how +
                          "; its workers died with it";
  log_error("the workers' warden (pid ", warden_->pid(), ") ", how, ": its workers died with it");
  if (options_.cgroup) options_.cgroup->kill();
  // Sets warden_gone_ only when the sweep reports that no process is left.
  orphan_sweep_ = OrphanSweep::start(io_, [weak = weak_from_this()] {
    const auto impl = weak.lock();
    if (!impl || impl->closed_) return;
    impl->warden_gone_ = true;
    impl->check_done();
  });
  for (Worker& worker : workers_) {
    if (worker.state != WorkerState::kEnded) worker_lost(worker, why);
    if (closed_) return;
  }
}

void WorkerGroup::Impl::worker_lost(Worker& worker, const std::string& why) {
  if (worker.output) worker.output->worker_ended();
  membership::WorkerFailure failure = describe(worker);
  failure.signal_number = SIGKILL;
  failure.note = why;
  fail(worker, std::move(failure), Clock::now());
}

// After stop(): ends the warden once no process is left, then reports the end.
void WorkerGroup::Impl::check_done() {
  if (!kill_at_ || finished_) return;
  if (!warden_ || warden_gone_) return finish_when_empty();
  if (empty_) warden_->hang_up();  // on_warden_gone follows
}

void WorkerGroup::Impl::say_who_is_killed(std::chrono::milliseconds grace) const {
  std::vector<int> ranks;
  for (const Worker& worker : workers_) {
    const bool has_rank = worker.spec.global_rank >= 0;
    if (has_rank && worker.state != WorkerState::kEnded) ranks.push_back(worker.spec.global_rank);
  }
  if (ranks.empty()) return;  // the processes that they left behind were named already
  log_warning(ranks_text(ranks), " ran on for ", grace.count() / 1000.0,
              " s after the signal to stop: killed now (--shutdown-timeout)");
}

// After stop(), when the last worker has ended: names the processes that are left after a while.
void WorkerGroup::Impl::wait_for_what_is_left() {
  const bool all_ended = std::ranges::all_of(
      workers_, [](const Worker& worker) { return worker.state == WorkerState::kEnded; });
  if (!all_ended || !kill_at_ || Clock::now() >= *kill_at_) return;
  run_after(kill_timer_, kStopNotice, [self = shared_from_this()] {
    if (self->closed_ || self->finished_ || self->warden_gone_) return;
    if (Clock::now() >= *self->kill_at_) return;  // wait_for_the_killed() reports it
    const std::string who = self->remaining();
    if (who.empty()) return;
    const auto left = std::chrono::ceil<std::chrono::seconds>(*self->kill_at_ - Clock::now());
    log_info("the workers have ended, but not what they started: ", who,
             "; it is killed in at most ", left.count(), " s (--shutdown-timeout)");
  });
}

void WorkerGroup::Impl::wait_for_the_killed(Clock::time_point killed_at, bool is_last) {
  run_at(kill_timer_, killed_at + (is_last ? options_.kill_limit : options_.kill_notice),
         [self = shared_from_this(), killed_at, is_last] {
           if (self->closed_ || self->finished_) return;
           const std::string who = self->remaining();
           if (is_last && !who.empty()) return self->give_up(who);
           if (!who.empty()) {
             log_warning("killed ", self->options_.kill_notice.count() / 1000.0,
                         " s ago, but still there: ", who);
           }
           if (!is_last) self->wait_for_the_killed(killed_at, true);
         });
}

// Returns the processes that are left; empty: there are none.
std::string WorkerGroup::Impl::remaining() const {
  if (options_.cgroup) {
    const CgroupTree& tree = options_.cgroup->tree();
    const std::string who = to_text(tree, processes_in(tree, options_.cgroup->directory()));
    return who.empty() ? "" : concat(who, " (", options_.cgroup->directory(), ")");
  }
  const CgroupTree tree;
  return warden_ ? to_text(tree, processes_below(tree, warden_->pid())) : "";
}

// Stops waiting for the processes; the warden goes on killing them by itself.
void WorkerGroup::Impl::give_up(const std::string& who) {
  const auto self = shared_from_this();  // an event may destroy the group
  if (events_.given_up) events_.given_up(who);
  if (closed_) return;
  if (warden_ && !warden_gone_) warden_->hang_up();
  finish();
}

// Waits until the cgroup is empty. Somebody may have put processes there that are not the warden's.
void WorkerGroup::Impl::finish_when_empty() {
  if (finished_ || empty_wait_) return;
  if (!options_.cgroup || options_.cgroup->is_empty()) return finish();
  options_.cgroup->kill();
  const auto killed_at = std::min(Clock::now(), *kill_at_);
  empty_wait_ = EmptyWait::start(io_, options_.cgroup, Deadline(killed_at + options_.kill_limit),
                                 [weak = weak_from_this()](bool is_empty) {
                                   const auto impl = weak.lock();
                                   if (!impl || impl->closed_ || impl->finished_) return;
                                   is_empty ? impl->finish() : impl->give_up(impl->remaining());
                                 });
}

void WorkerGroup::Impl::finish() {
  if (finished_) return;
  finished_ = true;
  spare_timer_.cancel();
  grace_timer_.cancel();
  kill_timer_.cancel();
  if (options_.cgroup) options_.cgroup->remove();
  for (Worker& worker : workers_) {
    if (worker.output) worker.output->close();
  }
  if (events_.all_gone) events_.all_gone();
}

WorkerGroup::WorkerGroup(boost::asio::io_context& io, Console& console, WorkerGroupOptions options,
                         int node_rank, WorkerGroupEvents events)
    : impl_(std::make_shared<Impl>(io, console, std::move(options), node_rank, std::move(events))) {
}

WorkerGroup::~WorkerGroup() { impl_->close(); }

void WorkerGroup::launch_warden() { impl_->launch_warden(); }
void WorkerGroup::start(std::vector<WorkerSpec> workers) { impl_->start(std::move(workers)); }
void WorkerGroup::stop(std::chrono::milliseconds grace, int signal_number) {
  impl_->stop(grace, signal_number);
}
void WorkerGroup::lease(std::optional<Clock::time_point> until) { impl_->lease(until); }
void WorkerGroup::adopt(int node_rank, int first_global_rank, const LogFolder& logs,
                        WorkerGroupEvents events) {
  impl_->adopt(node_rank, first_global_rank, logs, std::move(events));
}
void WorkerGroup::go_on(int node_rank, int first_global_rank, WorkerGroupEvents events) {
  impl_->go_on(node_rank, first_global_rank, std::move(events));
}
bool WorkerGroup::any_ended_well() const { return impl_->any_ended_well(); }
bool WorkerGroup::look(int global_rank, const std::function<void(LastOutput)>& done) const {
  return impl_->look(global_rank, done);
}
std::vector<pid_t> WorkerGroup::pids() const { return impl_->pids(); }
std::vector<pid_t> WorkerGroup::started() const { return impl_->started(); }
std::vector<std::optional<std::string>> WorkerGroup::why_cold() const { return impl_->why_cold(); }
void WorkerGroup::ask_to_leave(int signal_number) { impl_->ask_to_leave(signal_number); }

}  // namespace ddprun::agent
