// SPDX-License-Identifier: Apache-2.0
// Commands that submit jobs, and that ask for them later. docs/submit.md.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/shell_words.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "ctl/commands.h"
#include "ctl/endpoint_flags.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/scheduler.h"
#include "ctl/tables/tables.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::ctl {
namespace {

constexpr std::chrono::milliseconds kFirstPause{200}, kLongestPause{5'000};  // between questions
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The last words of a call that a signal ends. A signal handler can use nothing else.
const std::string* words_of_call = nullptr;

void end_with_words(int number) {
  if (!words_of_call->empty()) {
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, words_of_call->data(), words_of_call->size());
  }
  ::_exit(exit_status_for_signal(number));
}

// Collects SIGINT, SIGTERM and SIGHUP, so that they only end a command's waiting. Only one object
// may exist at a time. One thread.
class Interrupts {
 public:
  // `last_words`: a line that end_in() prints on stderr when it ends the process; empty: none.
  explicit Interrupts(std::string last_words = {}) : last_words_(std::move(last_words)) {
    sigemptyset(&kept_);
    for (const int number : kSignals) {
      if (!is_ignored(number)) sigaddset(&kept_, number);
    }
    fd_.reset(::signalfd(-1, &kept_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw_system_error("signalfd", errno);
    ::sigprocmask(SIG_BLOCK, &kept_, &before_);
  }
  ~Interrupts() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Calls a function that may wait for long, and leaves nothing behind if it is interrupted. A
  // signal that comes meanwhile, or came before, ends the process at once with 128 and its number,
  // after the last words.
  void end_in(const std::function<void()>& call) const {
    struct Open {
      explicit Open(const sigset_t& kept) : signals(kept) {
        struct sigaction ends {};
        ends.sa_handler = &end_with_words;
        for (std::size_t i = 0; i < std::size(kSignals); ++i) {
          if (sigismember(&signals, kSignals[i]) == 1) ::sigaction(kSignals[i], &ends, &before[i]);
        }
        ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
      }
      ~Open() {
        ::sigprocmask(SIG_BLOCK, &signals, nullptr);
        for (std::size_t i = 0; i < std::size(kSignals); ++i) {
          if (sigismember(&signals, kSignals[i]) == 1)
            ::sigaction(kSignals[i], &before[i], nullptr);
        }
      }
      const sigset_t& signals;
      struct sigaction before[std::size(kSignals)]{};
    };
    words_of_call = &last_words_;
    const Open open(kept_);
    call();
  }

  // Waits for at most `limit`. Returns true if a signal has come, now or before.
  bool wait(std::chrono::milliseconds limit) {
    if (signal_) return true;
    if (wait_ready(fd_.get(), POLLIN, Deadline::after(limit))) take();
    return signal_.has_value();
  }

  // Waits also until `fd` is ready for `events`, has failed or ended. Returns its state (poll(2)).
  short wait_with(int fd, short events, Deadline deadline) {
    if (signal_) return 0;
    std::array<pollfd, 2> polled = {pollfd{fd_.get(), POLLIN, 0}, pollfd{fd, events, 0}};
    while (::poll(polled.data(), polled.size(), deadline.poll_timeout_ms()) < 0) {
      if (errno != EINTR) throw_system_error("poll", errno);
    }
    if (polled[0].revents != 0) take();
    return polled[1].revents;
  }

  // The number of the signal that has come.
  std::optional<int> signal() const { return signal_; }

 private:
  void take() {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      signal_ = static_cast<int>(info.ssi_signo);
    }
  }

  const std::string last_words_;
  sigset_t before_{}, kept_{};
  UniqueFd fd_;
  std::optional<int> signal_;
};

// Asks the scheduler questions, until a signal comes.
class PlaceQuestions {
 public:
  // `patience`: how long a scheduler that has answered before is asked again while it is away. Both
  // others outlive this object.
  PlaceQuestions(Interrupts& interrupts, const submit::Scheduler& scheduler,
                 std::chrono::milliseconds patience)
      : interrupts_(interrupts), scheduler_(scheduler), patience_(patience) {}

  // The scheduler has just taken the job, so it is known to answer.
  void was_there() { was_there_ = true; }

  // Asks as LogView::ask does. False: a signal has come. Throws the question's errors; one that may
  // pass is thrown only when the patience is over.
  bool ask(const std::function<void()>& question) {
    const Deadline silence = Deadline::after(patience_);
    bool is_said = false;
    for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
      try {
        if (scheduler_.may_end_in_question()) {
          interrupts_.end_in(question);
        } else {
          question();
        }
        was_there_ = true;
        return true;
      } catch (const Error& error) {
        // ^C ends the running question, too.
        if (interrupts_.wait(std::chrono::milliseconds(0))) return false;
        if (!was_there_ || !scheduler_.may_be_over(error) || silence.expired()) throw;
        if (!is_said) say(concat(error.what(), "; asking again"));
        is_said = true;
      }
      if (interrupts_.wait(pause)) return false;
    }
  }

 private:
  Interrupts& interrupts_;
  const submit::Scheduler& scheduler_;
  const std::chrono::milliseconds patience_;
  bool was_there_ = false;
};

// Shows a job's output. A signal ends this even if nobody reads the output. Notices a reader that
// has left ("| head").
class LogOutput {
 public:
  // `fd` isn't owned. `interrupts` outlives this object.
  LogOutput(int fd, Interrupts& interrupts)
      : fd_(fd),
        interrupts_(interrupts),
        lost_(fd == STDOUT_FILENO && was_stdout_closed() ? EBADF : 0) {}

  // errno of a write that failed; 0: nothing was lost.
  int lost() const { return lost_; }

  // This object and `questions` must outlive the view.
  submit::LogView view(PlaceQuestions& questions) {
    return {.show = [this](std::string_view text) { return write(text); },
            .pause = [this](std::chrono::milliseconds limit) { return pause(limit); },
            .ask = [&questions](const std::function<void()>& call) { return questions.ask(call); }};
  }

 private:
  // Writes all of it. False: a signal has come, or it can't be written.
  bool write(std::string_view text) {
    const Deadline never = Deadline::after(std::chrono::hours::max());
    while (!text.empty()) {
      if (lost_ != 0) return false;
      interrupts_.wait_with(fd_, POLLOUT, never);
      if (interrupts_.signal()) return false;
      // A pipe that is ready takes this much at once.
      const ssize_t size = ::write(fd_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
      if (size >= 0) {
        text.remove_prefix(static_cast<std::size_t>(size));
      } else if (errno != EINTR && errno != EAGAIN) {
        lost_ = errno;
      }
    }
    return true;
  }

  // Waits for at most `limit`. False: a signal has come, or the output can't be written.
  bool pause(std::chrono::milliseconds limit) {
    if (lost_ != 0) return false;
    const short state = interrupts_.wait_with(fd_, 0, Deadline::after(limit));
    if ((state & (POLLERR | POLLHUP)) != 0) lost_ = EPIPE;
    return lost_ == 0 && !interrupts_.signal();
  }

  const int fd_;
  Interrupts& interrupts_;
  int lost_ = 0;
};

// Makes the scheduler that `place`, one of submit::place_names(), names. `endpoint` names the
// ddprund that has the jobs of standing agents; it outlives the scheduler. `context` is
// Kubernetes'. Throws Error(kInvalidArgument) if another place has a context.
std::unique_ptr<submit::Scheduler> make_scheduler(const std::string& place,
                                                  const EndpointFlags& endpoint,
                                                  const std::string& context = {}) {
  if (!context.empty() && place != "kubernetes") {
    throw Error(ErrorCode::kInvalidArgument,
                "--context=" + one_line(context) + " is of --to kubernetes alone");
  }
  if (place == "slurm") {
    return submit::slurm_scheduler(current_environment(), submit::ddprun_beside());
  }
  if (place == "ssh") {
    return submit::ssh_scheduler(current_environment(), submit::ddprun_beside());
  }
  if (place == "kubernetes") return submit::kubernetes_scheduler(context);
  if (place == "nodes") {
    const auto find_queue = [&endpoint](const ConfiguredEndpoint& keys) {
      return submit::NodesQueue{.client = endpoint.queue_of(keys),
                                .flags = endpoint.flags_of(keys)};
    };
    return submit::nodes_scheduler(current_environment(), submit::ddprun_beside(), find_queue);
  }
  throw Error(ErrorCode::kUnsupported, "--to " + one_line(place) + " is not known");
}

// A job's scheduler, and the job's id there: the job is named "slurm:4711", or "4711" with `place`.
struct NamedJob {
  std::unique_ptr<submit::Scheduler> scheduler;
  std::string id;
};

// Throws Error(kInvalidArgument) if `job` is neither of these.
NamedJob find_job(const std::string& job, const std::string& place, const EndpointFlags& endpoint,
                  const std::string& context) {
  if (const auto id = submit::parse_job_id(job)) {
    if (!place.empty() && place != id->place) {
      throw Error(ErrorCode::kInvalidArgument, one_line(job) + " is not a job of --to " + place);
    }
    return {make_scheduler(id->place, endpoint, context), id->id};
  }
  if (place.empty() || job.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("\"", one_line(job), "\" is no job's id (",
                       listed(submit::place_names(), ":…, "), ":…); or say --to"));
  }
  return {make_scheduler(place, endpoint, context), job};
}

// Shows a job's output. False: a signal has come.
bool show_output(submit::Scheduler& scheduler, const std::string& id, bool follow,
                 Interrupts& interrupts, const submit::LogView& view) {
  try {
    scheduler.logs(id, follow, view);
  } catch (const Error&) {  // ^C ended the question, too
    if (!interrupts.wait(std::chrono::milliseconds(0))) throw;
  }
  return !interrupts.signal();
}

// Returns the exit code of a command that failed with `before` (0: it hadn't) and then with `now`.
int joined_code(int before, int now) {
  return before == 0 || before == now ? now : static_cast<int>(ExitCode::kUsage);
}

// A command that shows one page of a rendezvous: as a table, or with --json as shown_json() prints
// it.
class PageCommand : public Command {
 public:
  // `target`: "/v1/jobs".
  PageCommand(CLI::App& app, const char* name, const char* target,
              std::string (*table)(const std::string& page))
      : Command(app, name), target_(target), table_(table), endpoint_(*command_) {
    command_->add_flag("--json", json_, "All that it says, as JSON");
  }

  CLI::App& command() const { return *command_; }
  const EndpointFlags& endpoint() const { return endpoint_; }
  bool json() const { return json_; }

  // Fetches and prints the page. Throws as EndpointFlags::fetch_page() and the table. With --json
  // the table is made, too, so that another page is never printed.
  int run() const override {
    const std::string page = endpoint_.fetch_page(target_);
    const std::string table = endpoint_.read_page(page, table_);
    return print_or_tell(json_ ? shown_json(page) : table);
  }

 private:
  const char* const target_;
  std::string (*const table_)(const std::string& page);
  EndpointFlags endpoint_;
  bool json_ = false;
};

// Commands on submitted jobs: `logs` and `cancel`, and with --to or a job's id `jobs` and `status`.
// Without these two, `jobs` and `status` show a rendezvous. docs/submit.md.
class JobCommands : public Command {
 public:
  explicit JobCommands(CLI::App& app)
      : Command(app, "jobs"),
        jobs_(app, "jobs", "/v1/jobs", jobs_table),
        status_(app, "status", "/v1/status", status_table),
        logs_(app.get_subcommand("logs")),
        cancel_(app.get_subcommand("cancel")),
        logs_endpoint_(*logs_),
        cancel_endpoint_(*cancel_) {
    const auto add_place = [&](CLI::App& command, const char* help) {
      command.add_option("--to", place_, help)->check(CLI::IsMember(submit::place_names()));
      command.add_option("--context", context_, "Kubernetes: kubectl's context");
    };
    add_place(jobs_.command(), "Show what was submitted there, instead (docs/submit.md)");
    add_place(status_.command(), "Where JOB is, unless its id says so; without JOB as jobs --to");
    add_place(*logs_, "Where JOB is, unless its id says so");
    add_place(*cancel_, "Where the jobs are, unless their ids say so");
    status_.command().add_option("JOB", job_, "Show this submitted job, instead: slurm:4711");
    logs_->add_option("JOB", job_, "Its id: slurm:4711")->required();
    logs_->add_flag("-f,--follow", follow_, "Until the job is over");
    cancel_->add_option("JOB", jobs_to_cancel_, "Their ids: slurm:4711")->required();
  }

  bool chosen() const override {
    return jobs_.chosen() || status_.chosen() || logs_->parsed() || cancel_->parsed();
  }
  // Throws as Scheduler, too.
  int run() const override {
    if (logs_->parsed()) return show_logs();
    if (cancel_->parsed()) return cancel();
    if (!job_.empty()) return show_status();
    const PageCommand& page = jobs_.chosen() ? jobs_ : status_;
    return place_.empty() && context_.empty() ? page.run() : show_jobs(page);
  }

 private:
  int show_jobs(const PageCommand& command) const {
    const auto states = make_scheduler(place_, command.endpoint(), context_)->list();
    return print_or_tell(command.json() ? submit::states_json(states)
                                        : submit::states_table(states));
  }

  int show_status() const {
    const NamedJob job = find_job(job_, place_, status_.endpoint(), context_);
    const submit::JobState state = job.scheduler->status(job.id);
    return print_or_tell(status_.json() ? submit::state_json(state) : submit::state_text(state));
  }

  int show_logs() const {
    const NamedJob job = find_job(job_, place_, logs_endpoint_, context_);
    Interrupts interrupts;
    const auto patience = follow_ ? submit::kMostSilence : std::chrono::minutes(0);
    PlaceQuestions questions(interrupts, *job.scheduler, patience);
    LogOutput output(STDOUT_FILENO, interrupts);
    show_output(*job.scheduler, job.id, follow_, interrupts, output.view(questions));
    if (output.lost() != 0) {
      tell_lost_output(output.lost());
      return static_cast<int>(ExitCode::kOutputLost);
    }
    return interrupts.signal() ? exit_status_for_signal(*interrupts.signal()) : 0;
  }

  int cancel() const {
    int code = 0;
    for (const std::string& each : jobs_to_cancel_) {
      try {
        const NamedJob job = find_job(each, place_, cancel_endpoint_, context_);
        job.scheduler->cancel(job.id);
      } catch (const Error& error) {  // the other schedulers are still asked
        say(error.what());
        code = joined_code(code, static_cast<int>(exit_code_for(error.code())));
      }
    }
    return code;
  }

  PageCommand jobs_, status_;
  CLI::App *const logs_, *const cancel_;
  EndpointFlags logs_endpoint_, cancel_endpoint_;
  std::string place_, job_, context_;
  std::vector<std::string> jobs_to_cancel_;
  bool follow_ = false;
};

// Asks for the job's state, less and less often, until `enough` says so. nullopt: a signal has
// come.
template <typename Enough>
std::optional<submit::JobState> ask_until(submit::Scheduler& scheduler, const std::string& id,
                                          Interrupts& interrupts, PlaceQuestions& questions,
                                          Enough enough) {
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    submit::JobState state;
    if (!questions.ask([&] { state = scheduler.status(id); })) return std::nullopt;
    if (enough(state.phase)) return state;
    if (interrupts.wait(pause)) return std::nullopt;
  }
}

class SubmitCommand : public Command {
 public:
  explicit SubmitCommand(CLI::App& app) : Command(app, "submit"), endpoint_(*command_) {
    command_->add_option("FILE", file_, "The job, a TOML file")->required();
    command_->add_option("--to", place_, "Where; may be left out where the file has one [to.…]")
        ->check(CLI::IsMember(submit::place_names()));
    command_->add_flag("--dry-run", dry_run_,
                       "Print what would be submitted, and which ranks go where");
    command_->add_flag("--wait", wait_, "Show the job's output, and end with its exit code");
    command_->add_flag("--json", json_,
                       "One JSON object: what would be submitted, the id, or the end");
  }

  // Returns the exit code. Throws as Scheduler. Errors in the file or the job are printed.
  int run() const override {
    try {
      return submit(submit::JobFile::from_file(file_));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line);) say(line);
      return static_cast<int>(ExitCode::kUsage);
    }
  }

 private:
  int submit(const submit::JobFile& job) const {
    const std::string place = place_of(job);
    const auto scheduler = make_scheduler(place, endpoint_);
    // The scheduler of standing agents checks the flags itself.
    if (place != "nodes") submit::check_flags(job, submit::ddprun_beside(), place);
    if (dry_run_) {
      const submit::Plan plan = scheduler->plan(job);
      return print_or_tell(json_ ? submit::plan_json(place, plan) : submit::plan_text(plan));
    }
    const std::string id = scheduler->submit(job);
    const std::string whole = place + ":" + id;
    if (wait_) {
      say("submitted " + whole);
      return follow(*scheduler, id);
    }
    return print_or_tell(json_ ? submit::id_json(whole) : whole + "\n", 0, whole + " is submitted");
  }

  std::string place_of(const submit::JobFile& job) const {
    if (!place_.empty()) return place_;
    if (job.places.size() == 1) return job.places.front();
    throw Error(ErrorCode::kInvalidArgument,
                job.path + (job.places.empty() ? " doesn't say" : " has several tables of") +
                    " where: --to " + CLI::detail::join(submit::place_names(), ", "));
  }

  int follow(submit::Scheduler& scheduler, const std::string& id) const {
    using submit::Phase;
    const std::string whole = concat(scheduler.name(), ":", id);
    std::vector<std::string> words = scheduler.flags();
    words.insert(words.begin(), whole);
    const std::string named = shell_line(words);
    const std::string goes_on = concat(whole, " goes on: ddprunctl logs -f ", named,
                                       " shows it, ddprunctl cancel ", named, " ends it");
    Interrupts interrupts("ddprunctl: " + goes_on + "\n");
    PlaceQuestions questions(interrupts, scheduler, submit::kMostSilence);
    questions.was_there();
    LogOutput output(json_ ? STDERR_FILENO : STDOUT_FILENO, interrupts);
    auto state = ask_until(scheduler, id, interrupts, questions,
                           [](Phase phase) { return phase != Phase::kQueued; });
    if (state && !show_output(scheduler, id, true, interrupts, output.view(questions)))
      state.reset();
    // The job's end is waited for even if the output is lost.
    if (output.lost() != 0 && !json_) tell_lost_output(output.lost(), whole + " goes on");
    if (state) {
      state = ask_until(scheduler, id, interrupts, questions, [](Phase phase) {
        return submit::is_over(phase) || phase == Phase::kUnknown;
      });
    }
    if (!state) {
      say(goes_on);
      return exit_status_for_signal(interrupts.signal().value_or(SIGINT));
    }
    if (json_) {
      const std::string news = concat(whole, " is over: ", submit::to_string(state->phase));
      if (const int code = print_or_tell(submit::state_json(*state), 0, news); code != 0)
        return code;
    } else if (state->phase != Phase::kSucceeded || !state->reason.empty()) {
      say(whole + " " + submit::to_string(state->phase) +
          (state->reason.empty() ? "" : ": " + state->reason));
    }
    const int code = submit::exit_code_of(*state);
    const bool is_lost = output.lost() != 0 && !json_;
    return code == 0 && is_lost ? static_cast<int>(ExitCode::kOutputLost) : code;
  }

  EndpointFlags endpoint_;
  std::string file_, place_;
  bool dry_run_ = false, wait_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_job_commands(CLI::App& app) {
  return std::make_unique<JobCommands>(app);
}

std::unique_ptr<Command> make_submit_command(CLI::App& app) {
  return std::make_unique<SubmitCommand>(app);
}

}  // namespace ddprun::ctl
