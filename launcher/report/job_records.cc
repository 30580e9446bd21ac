// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_records.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "agent/output/log_writer.h"
#include "common/error.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

std::optional<std::uint64_t> missing_lines(std::string_view line) {
  return parsed_number<std::uint64_t>(line.substr(0, line.size() - 1));  // without its "\n"
}

// {…} becomes {…,"lost":N}.
std::string with_lost(std::string_view line, std::uint64_t num_lost) {
  std::string text(line.substr(0, line.rfind('}')));
  return text + ",\"lost\":" + std::to_string(num_lost) + "}\n";
}

// Called by the log thread. Sets `path` to the file's path.
UniqueFd open_in(agent::LogTree& logs, const std::string& name, std::string& path,
                 std::string& problem) {
  try {
    const agent::LogFolder& run = logs.begin_run();
    path = run.path + "/" + name;
    UniqueFd file = open_event_file(path, run);
    if (!file) problem = errno_text(errno);
    return file;
  } catch (const Error& error) {
    problem = error.what();
    return {};
  }
}

// The log thread opens the file, since a file server may be dead. `flag` is the one that names
// `path`.
UniqueFd open_given(const std::string& flag, const std::string& path, agent::LogWriter& writer) {
  struct Opened {
    UniqueFd fd;
    int error = 0;
  };
  const std::function<Opened()> open = [path] {
    Opened opened{open_event_file(path), 0};
    if (!opened.fd) opened.error = errno;
    return opened;
  };
  std::optional<Opened> opened = writer.call(open);
  if (opened && opened->fd) return std::move(opened->fd);
  const std::string why = !opened                  ? "its file system doesn't answer"
                          : opened->error == ENXIO ? "nobody reads it"
                                                   : opening_trouble(path, opened->error);
  throw Error(ErrorCode::kInvalidArgument, concat(flag, path, " can't be opened: ", why));
}

// Must be longer than a pipe's reader may take.
constexpr std::chrono::milliseconds kReportPatience = kLastLinesPatience + std::chrono::seconds(1);

JobFacts facts_of(const JobPlan& plan) {
  const LaunchConfig& config = plan.config;
  return {.job_id = plan.rendezvous.job_id,
          .host = host_name(),
          .version = DDPRUN_VERSION,
          .pid = ::getpid(),
          .program = config.program,
          .arguments = config.program_args,
          .num_workers = plan.num_workers,
          .min_nodes = config.min_nodes,
          .max_nodes = config.max_nodes,
          .max_restarts = config.max_restarts};
}

}  // namespace

// The problem that the log thread found, for the io thread.
struct EventTrouble {
  std::mutex mutex;
  std::string text;       // guarded by mutex; empty: none
  bool was_said = false;  // guarded by mutex

  // Returns the text once, and then an empty one.
  std::string take() {
    const std::lock_guard lock(mutex);
    if (text.empty() || std::exchange(was_said, true)) return {};
    return text;
  }
};

// The io thread's side of a file of events: takes lines and never waits. io thread only.
class EventQueue {
 public:
  // The file that gets the lines.
  struct Place {
    std::string path;
    UniqueFd opened;  // used for the file's first line
  };

  // `writer` outlives this object. `options` has `open` and `says_lost` set; `open` may change
  // `place`'s path. `notice` is called once if lines are lost.
  EventQueue(agent::LogWriter& writer, const std::shared_ptr<Place>& place,
             EventFileOptions options, std::function<void(const std::string&)> notice)
      : writer_(writer), trouble_(std::make_shared<EventTrouble>()) {
    options.lost = [place, trouble = trouble_, post = writer.poster(),
                    notice = std::move(notice)](const std::string& why) {
      {
        const std::lock_guard lock(trouble->mutex);
        trouble->text = concat("can't write events to ", place->path, " (", why,
                               "): they are lost until they can be written again; the job goes on");
      }
      post([trouble, notice] {
        if (const std::string text = trouble->take(); !text.empty() && notice) notice(text);
      });
    };
    file_ = writer.open_sink(place->path, [options = std::move(options)] {
      return std::make_unique<EventFile>(options);
    });
  }

  // Writes to the file that the user named by `flag`. Opens it now, and throws
  // Error(kInvalidArgument).
  static std::unique_ptr<EventQueue> to_given(const std::string& flag, std::string path,
                                              bool says_lost, agent::Console& console) {
    UniqueFd opened = open_given(flag, path, console.log_writer());
    const auto place = std::make_shared<Place>(Place{std::move(path), std::move(opened)});
    EventFileOptions options;
    options.open = [place](std::string&) { return std::move(place->opened); };
    options.says_lost = says_lost;
    return std::make_unique<EventQueue>(console.log_writer(), place, std::move(options),
                                        console.options().notice);
  }

  // Takes whole lines, or none.
  void write(const std::string& lines) {
    if (lines.empty()) return;
    if (file_->is_full() && !is_ending_) {
      num_left_out_ += static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
      return;
    }
    if (const auto missing = std::exchange(num_left_out_, 0); missing > 0) {
      file_->append(std::to_string(missing) + "\n");
    }
    file_->append(lines);
    writer_.flush();
  }

  // Called before the last lines: they are few, and there is room for them.
  void begin_end() { is_ending_ = true; }

  // Must be called after the last write. Returns the problem that `notice` wasn't told. Empty:
  // none.
  std::string unsaid() const { return trouble_->take(); }

 private:
  agent::LogWriter& writer_;
  const std::shared_ptr<EventTrouble> trouble_;  // also owned by the file
  std::unique_ptr<agent::LogWriter::File> file_;
  std::uint64_t num_left_out_ = 0;  // lines since the last queued one
  bool is_ending_ = false;
};

// Writes --events: this node's record of its job, from the agent's events. io thread only.
class JobEvents {
 public:
  // Writes the first line. `path` is as given and is opened now: throws Error(kInvalidArgument).
  // Empty: a file in the run's directory of `logs`, which is made now. `console` outlives this
  // object.
  JobEvents(JobFacts facts, Clock::time_point begun, const std::string& path,
            std::shared_ptr<agent::LogTree> logs, agent::Console& console)
      : lines_(std::move(facts), begun) {
    if (path.empty()) {
      const std::string name = "events." + lines_.host() + ".jsonl";  // host names have no "/"
      const auto place = std::make_shared<EventQueue::Place>(EventQueue::Place{name, {}});
      EventFileOptions options;
      options.open = [place, logs = std::move(logs), name](std::string& problem) {
        return open_in(*logs, name, place->path, problem);
      };
      queue_ = std::make_unique<EventQueue>(console.log_writer(), place, std::move(options),
                                            console.options().notice);
    } else {
      queue_ = EventQueue::to_given("--events=", with_host_name(path), true, console);
    }
    queue_->write(lines_.begin(Moment::now()));
  }

  void listen(agent::NodeAgentEvents& events) {
    events.worker_ended = [this](const agent::WorkerExit& exit) {
      queue_->write(lines_.worker_ended(exit, Moment::now()));
    };
    events.round_over = [this](const membership::agent_action::RoundOver& over) {
      queue_->write(lines_.round_over(over, Moment::now()));
    };
    events.workers_gone = [this] { lines_.workers_gone(Moment::now()); };
    events.node_read = [this](const membership::NodeReport& report) {
      queue_->write(lines_.node_read(report, Moment::now()));
    };
    events.progressed = [this](const std::vector<agent::RankProgress>& ranks) {
      queue_->write(lines_.progressed(ranks, Moment::now()));
    };
  }

  void round_began(const membership::StartRound& round) {
    queue_->write(lines_.round_began(round, Moment::now()));
  }

  void workers_run(const std::vector<pid_t>& pids) {
    queue_->write(lines_.workers_run(pids, Moment::now()));
  }

  // Writes the last line.
  void ended(const membership::JobEnd& verdict) {
    queue_->begin_end();
    queue_->write(lines_.ended(verdict, Moment::now()));
  }

  std::string unsaid() const { return queue_->unsaid(); }

 private:
  EventLines lines_;
  std::unique_ptr<EventQueue> queue_;
};

UniqueFd open_event_file(const std::string& path, const agent::LogFolder& run) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  if (!run.fd) return open_to_write(path, kFlags, 0666);
  return UniqueFd(::openat(run.fd->get(), run.name_of(path).c_str(), kFlags | O_NOFOLLOW, 0666));
}

void EventFile::write(std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    if (line.empty()) return;  // no whole line, which can't happen
    lines.remove_prefix(line.size());
    if (const auto missing = missing_lines(line)) {
      num_lost_ += *missing;
      if (!options_.says_lost) tell("it takes less than comes");
    } else {
      write_line(line);
    }
  }
}

void EventFile::write_line(std::string_view line) {
  std::string problem;
  if (!fd_) fd_ = options_.open(problem);
  std::string_view rest = rest_;
  if (problem.empty()) problem = write_out(rest);
  rest_.erase(0, rest_.size() - rest.size());
  const bool says_lost = options_.says_lost && num_lost_ > 0;
  const std::string text = says_lost ? with_lost(line, num_lost_) : std::string(line);
  std::string_view left = text;
  if (problem.empty()) problem = write_out(left);
  if (left.size() == text.size()) {
    ++num_lost_;
  } else {
    num_lost_ = 0;
    rest_ = left;  // written when there is room
  }
  is_in_trouble_ = !problem.empty();
  if (is_in_trouble_) tell(problem);
}

void EventFile::tell(const std::string& why) {
  if (!std::exchange(has_told_, true) && options_.lost) options_.lost(why);
}

// Writes `text`, and removes what was written from it. Returns "", or why something is left.
std::string EventFile::write_out(std::string_view& text) {
  const auto patience = is_in_trouble_ ? std::chrono::milliseconds(0) : options_.patience;
  const Deadline deadline = Deadline::after(patience);
  while (!text.empty()) {
    const ssize_t size = ::write(fd_.get(), text.data(), text.size());
    if (size > 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
      continue;
    }
    const int error = size < 0 ? errno : ENOSPC;
    if (error == EINTR) continue;
    if (error != EAGAIN) return errno_text(error);
    pollfd ready{fd_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) == 0) return "its reader takes nothing";
  }
  return {};
}

JobRecords::JobRecords(const JobPlan& plan, Clock::time_point begun, agent::Console& console,
                       std::shared_ptr<agent::LogTree> logs)
    : console_(console),
      begun_(begun),
      report_(facts_of(plan), begun,
              std::chrono::system_clock::now() -
                  std::chrono::duration_cast<WallTime::duration>(Clock::now() - begun)) {
  if (!plan.config.event_log.empty()) open_event_log(plan);
  open_events(plan, std::move(logs));
  if (plan.config.report.empty()) return;
  file_ = std::make_shared<ReportFile>(plan.config.report);
  file_->begin();
}

JobRecords::~JobRecords() = default;

void JobRecords::open_event_log(const JobPlan& plan) {
  constexpr std::string_view kFile = "file=";
  const std::string& where = plan.config.event_log;
  std::function<void(const std::string&)> write = [this](const std::string& line) {
    console_.lines(agent::OutputStream::kStderr).feed(event_lines_, line, Clock::now());
    console_.flush(agent::OutputStream::kStderr);
  };
  if (where.starts_with(kFile)) {
    // torchrun's readers would not know an additional key for lost lines.
    event_log_file_ = EventQueue::to_given("--event-log-handler=file=", where.substr(kFile.size()),
                                           false, console_);
    write = [this](const std::string& line) { event_log_file_->write(line); };
  }
  const bool is_static = plan.rendezvous.mode == RendezvousMode::kStatic;
  event_log_ = std::make_unique<EventLog>(
      EventLogOptions{.run_id = plan.rendezvous.job_id,
                      .role = plan.config.role,
                      .host = host_name(),
                      .rdzv_backend = is_static ? membership::kStaticBackend : "c10d",
                      .program = plan.program.argv.front()},
      begun_, std::move(write));
}

// If no path is given, the events' file is with the log files.
void JobRecords::open_events(const JobPlan& plan, std::shared_ptr<agent::LogTree> logs) {
  const std::string& path = plan.config.events;
  if (path == kNoEvents || (path.empty() && !logs)) return;
  events_ = std::make_unique<JobEvents>(facts_of(plan), begun_, path, std::move(logs), console_);
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

void JobRecords::ended(const membership::agent_action::Exit& exit, int node_rank,
                       const std::vector<std::string>& flight_recorders) {
  if (event_log_file_) event_log_file_->begin_end();
  if (event_log_) event_log_->ended(exit.verdict, Clock::now());
  if (events_) events_->ended(exit.verdict);
  if (!file_) return;
  std::string text =
      report_.text(exit.verdict, exit.local, node_rank, Clock::now(), flight_recorders);
  if (file_->is_stdout()) {
    for_stdout_ = std::move(text);
    return;
  }
  // Writes in another thread: other nodes may need this one's rendezvous meanwhile.
  const auto write = [file = file_, text = std::move(text), problem = report_problem_] {
    *problem = file->write(text);
  };
  try {
    report_writing_ = std::make_unique<BoundedCall>(write);
  } catch (const Error&) {
    write();  // no thread can be started
  }
}

std::vector<std::string> JobRecords::finish() {
  std::vector<std::string> problems;
  const auto add = [&problems](const std::string& name, const std::string& problem) {
    if (!problem.empty()) problems.push_back(name + problem);
  };
  if (event_log_file_) add("", event_log_file_->unsaid());
  if (events_) add("", events_->unsaid());
  if (!for_stdout_.empty()) {
    add("--report=- was not written: ", file_->write(for_stdout_));
  } else if (file_) {
    const bool hangs =
        report_writing_ && !report_writing_->returns_before(Deadline::after(kReportPatience));
    add("--report=" + file_->path() + " was not written: ",
        hangs ? "its file system doesn't answer" : *report_problem_);
  }
  return problems;
}

}  // namespace ddprun::launcher
