// SPDX-License-Identifier: Apache-2.0
#include "launcher/gangs/gang_request.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/secret.h"
#include "common/signal_names.h"
#include "launcher/failure_report.h"
#include "launcher/hosts/own_lines.h"
#include "launcher/terminal_text.h"
#include "rendezvous/pages/gang_client.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

// How long a page waits for news. A signal is handled at most this late.
constexpr milliseconds kPageWait{1'000};
constexpr int kRetryMs = 200;
constexpr std::chrono::seconds kSubmitLimit{10};  // to wait for a ddprund that isn't there yet
// Limits a write to a reader that takes nothing. The output stays in the nodes' files.
constexpr milliseconds kWriteWait{1'000};

bool is_away(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout ||
         error.code() == ErrorCode::kConnectionLost;
}

// A quarter of the manager's limit: the longest call, and the time between signs of life.
std::optional<std::chrono::microseconds> quarter_of(const ServiceManager& manager) {
  const auto limit = manager.watchdog_limit();
  return limit ? std::optional(*limit / 4) : std::nullopt;
}

// The signs of life of a ddprun that follows a gang as a systemd service (docs/systemd.md). Without
// an event loop they are given between calls, whose time is bounded. One thread.
class GangService {
 public:
  explicit GangService(ServiceManager manager)
      : manager_(std::move(manager)), sign_period_(quarter_of(manager_)) {}

  // Returns how long a call may take, at most `most`: a sign of life comes before and after it.
  milliseconds bounded(milliseconds most) const {
    if (!sign_period_) return most;
    return std::clamp(std::chrono::duration_cast<milliseconds>(*sign_period_), milliseconds(1),
                      most);
  }

  // Gives a sign of life if one is due. `status` is the line that `systemctl status` shows. The
  // first status also says that the service is ready.
  void goes_on(const std::string& status) {
    if (status == status_) return goes_on();
    const bool is_first = std::exchange(status_, status).empty();
    said_ = Clock::now();
    manager_.tell(concat(is_first ? "READY=1\n" : "", sign_period_ ? "WATCHDOG=1\n" : "",
                         "STATUS=", one_line(status)));
  }

  // Gives a sign of life with the last status. Does nothing before the first status.
  void goes_on() {
    const auto now = Clock::now();
    if (status_.empty() || !sign_period_ || now - said_ < *sign_period_) return;
    said_ = now;
    manager_.tell("WATCHDOG=1");
  }

  void stopping() { manager_.tell("STOPPING=1\nSTATUS=stopping"); }

 private:
  const ServiceManager manager_;
  const std::optional<std::chrono::microseconds> sign_period_;
  std::string status_;  // the last one given; empty: none yet
  Clock::time_point said_{};
};

milliseconds limit_of(const pages::GangClientOptions& options, const GangService& service) {
  return service.bounded(options.timeout * static_cast<int>(options.endpoints.size()));
}

// Half of the time that one endpoint has to answer: the answer must also travel.
milliseconds page_wait(const pages::GangClientOptions& options, const GangService& service) {
  const int num_shares = 2 * static_cast<int>(options.endpoints.size());
  return std::min(kPageWait, limit_of(options, service) / num_shares);
}

pages::GangClientOptions bounded(pages::GangClientOptions options, const GangService& service) {
  options.limit = limit_of(options, service);
  options.timeout = std::min(options.timeout, options.limit);
  return options;
}

volatile sig_atomic_t num_signals = 0, first_signal = 0, outlived_signal = 0;

void count_signal(int number) {
  if (num_signals == 0) first_signal = number;
  num_signals = num_signals + 1;
}

void outlive_signal(int number) { outlived_signal = number; }

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  if (!is_ignored(number)) ::sigaction(number, &action, nullptr);
}

// From now on SIGINT, SIGTERM, SIGHUP and SIGQUIT are counted, unless one was ignored when this
// process started. SIGUSR1 and SIGUSR2, which warn a node's ddprun of its end, don't end this
// process.
void take_gang_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) handle(number, count_signal);
  for (const int number : {SIGUSR1, SIGUSR2}) handle(number, outlive_signal);
}

// Returns the last signal that was survived, once.
std::optional<int> take_outlived_signal() {
  const int number = outlived_signal;
  outlived_signal = 0;
  return number == 0 ? std::nullopt : std::optional<int>(number);
}

// Submits the job, shows its nodes' output, and ends with the job's exit status. Blocking, one
// thread.
class GangJob {
 public:
  // Precondition: the request has no problems. `lost_timeout` is how long it waits for a ddprund
  // that is away.
  GangJob(GangRequest request, pages::GangClientOptions client, milliseconds lost_timeout,
          ServiceManager manager)
      : request_(std::move(request)),
        service_(std::move(manager)),
        page_wait_(page_wait(client, service_)),
        client_(bounded(std::move(client), service_)),
        lost_timeout_(lost_timeout) {}

  // Returns ddprun's exit status: 0, or another one with failure(). Throws Error if the job is
  // refused.
  int run() {
    take_gang_signals();
    if (submit() == Next::kLeave) return exit_status_;
    while (!reader_.is_over()) {
      if (look_at_signals() == Next::kLeave || follow() == Next::kLeave) return exit_status_;
    }
    return finish();
  }

  std::string failure() const {
    return num_signals > 0 ? "got " + signal_name(first_signal) : failure_;
  }

 private:
  enum class Next { kGoOn, kLeave };

  Next submit() {
    const Deadline deadline = Deadline::after(kSubmitLimit);
    bool may_be_there = false;
    while (true) {
      try {
        take(client_.submit(request_.spec));
        return show_taken();
      } catch (const Error& error) {
        const bool is_foreign = error.code() == ErrorCode::kProtocol;
        if (!is_away(error) && !(is_foreign && may_be_there)) throw;
        if (lost_why_.empty()) log_warning("the ddprund is away: ", error.what(), "; trying on");
        lost_why_ = error.what();
        may_be_there |= error.code() != ErrorCode::kUnavailable;  // the request may have arrived
      }
      say_what_was_outlived();
      if (num_signals > 0) {
        exit_status_ = exit_status_for_signal(first_signal);
        if (may_be_there && !call([this] { client_.cancel(request_.spec.id); })) {
          log_warning("gang ", request_.spec.id, " may have been submitted");
        }
        return Next::kLeave;
      }
      if (deadline.expired()) {
        log_error(failure_ = lost_why_);
        if (may_be_there) log_warning("gang ", request_.spec.id, " may have been submitted");
        exit_status_ = static_cast<int>(ExitCode::kRendezvousUnreachable);
        return Next::kLeave;
      }
      ::poll(nullptr, 0, kRetryMs);  // a signal ends the wait
    }
  }

  // Signals that come together count as one, such as those of timeout(1), which sends its signal to
  // the group, too. A further signal counts after the first one's effect was printed.
  Next look_at_signals() {
    say_what_was_outlived();
    const int seen = num_signals;
    if (seen == 0) return Next::kGoOn;
    const std::string& id = request_.spec.id;
    if (exit_status_ == 0) service_.stopping();
    exit_status_ = exit_status_for_signal(first_signal);
    bool is_asked_to_leave = seen > num_signals_said_;
    if (!has_cancelled_) {
      has_cancelled_ = call([&] { client_.cancel(id); });
      is_asked_to_leave = !has_cancelled_ && seen > 1;
      if (has_cancelled_) {
        num_signals_said_ = num_signals;
        log_info("gang ", id, " is cancelled; a second signal stops the wait for its end");
      }
    }
    if (is_asked_to_leave) {
      log_info("gang ", id, " is left to end by itself");
      return Next::kLeave;
    }
    return lost_since_ && Clock::now() - *lost_since_ >= lost_timeout_ ? Next::kLeave : Next::kGoOn;
  }

  // These signals warn a node's ddprun of its end (--preemption-signals), but this ddprun is on no
  // node of the job.
  void say_what_was_outlived() {
    const auto number = take_outlived_signal();
    if (!number) return;
    log_info("got ", signal_name(*number), ": gang ", request_.spec.id,
             " is not preempted by it, for its nodes are others (SIGTERM cancels it)");
  }

  Next follow() {
    bool is_known = true;
    const bool is_answered = call([&] {
      const auto news =
          client_.logs(request_.spec.id, reader_.places(), reader_.seen(), page_wait_);
      is_known = news.has_value();
      if (is_known) take(*news);
    });
    if (!is_known) return forgotten();
    if (is_answered) return show_taken();
    if (Clock::now() - *lost_since_ < lost_timeout_) return Next::kGoOn;
    failure_ = concat("the ddprund is away for ", lost_timeout_.count() / 1000, " s: ", lost_why_,
                      "; gang ", request_.spec.id,
                      " is left to itself (ddprunctl status nodes:", request_.spec.id, ")");
    log_error(failure_);
    exit_status_ = static_cast<int>(ExitCode::kRendezvousUnreachable);
    return Next::kLeave;
  }

  // The gang has ended, or will soon: the ddprund has its agents end gangs that it doesn't know.
  Next forgotten() {
    log_error(failure_ = pages::GangClient::forgotten_text(request_.spec.id));
    if (num_signals == 0) exit_status_ = static_cast<int>(ExitCode::kRetryable);
    return Next::kLeave;
  }

  // False: nobody answered, or another process did. A ddprund that had taken the gang, with this
  // token, may be away for a while, and another process may use its port.
  bool call(const std::function<void()>& request) {
    service_.goes_on();
    try {
      request();
      lost_since_.reset();
      return true;
    } catch (const Error& error) {
      if (!lost_since_) {
        lost_since_ = Clock::now();
        log_warning("the ddprund is away: ", error.what(), "; trying on");
      }
      lost_why_ = error.what();
      ::poll(nullptr, 0, kRetryMs);  // a signal ends the wait
      return false;
    }
  }

  void take(const gangs::GangNews& news) {
    taken_ = reader_.take(news);
    waits_for_ = news.waits_for;
    before_ = news.before;
  }

  Next show_taken() {
    if (show(std::exchange(taken_, {})) == Next::kLeave) return Next::kLeave;
    say_phase();
    return Next::kGoOn;
  }

  Next show(const std::vector<pages::GangReader::Piece>& pieces) {
    if (!own_lines_ && !reader_.nodes().empty()) own_lines_.emplace(reader_.nodes());
    for (const auto& piece : pieces) {
      const Next next =
          piece.is_err
              ? write(STDERR_FILENO, own_lines_->pass(static_cast<int>(piece.node), piece.text))
              : write(STDOUT_FILENO, piece.text);
      if (next == Next::kLeave) return next;
    }
    return Next::kGoOn;
  }

  // Waits while the reader takes nothing, but still handles signals.
  Next write(int fd, std::string_view text) {
    while (!text.empty() && !has_no_reader_[fd]) {
      service_.goes_on();
      text.remove_prefix(write_what_fits(fd, text, service_.bounded(kWriteWait)));
      const int error = text.empty() ? 0 : errno;
      has_no_reader_[fd] = error != 0;
      if (fd == STDOUT_FILENO && error != 0 && error != EPIPE) {
        log_warning("stdout: ", errno_text(error),
                    "; what the gang prints from here on is in its "
                    "nodes' files: ddprunctl logs nodes:",
                    request_.spec.id);
      }
      if (look_at_signals() == Next::kLeave) return Next::kLeave;
    }
    return Next::kGoOn;
  }

  void say_phase() {
    const gangs::GangState& state = reader_.state();
    service_.goes_on(concat("gang ", state.id, ": ", gangs::to_string(state.phase)));
    if (said_phase_ == state.phase) return;
    said_phase_ = state.phase;
    if (state.phase == gangs::GangPhase::kQueued) {
      log_info("gang ", state.id, " is queued, ", before_, " before it: ", waits_for_);
    } else if (state.phase == gangs::GangPhase::kRunning) {
      log_info("gang ", state.id, " runs on ", listed(reader_.nodes()));
    }
  }

  int finish() {
    if (own_lines_) {
      for (std::size_t i = 0; i < reader_.nodes().size(); ++i) {
        write_within(STDERR_FILENO, own_lines_->end(static_cast<int>(i)), kWriteWait);
      }
    }
    for (const std::string& trouble : reader_.troubles()) log_warning(trouble);
    const gangs::GangState& state = reader_.state();
    failure_ = concat("gang ", state.id, " has ended with ", state.exit_code);
    if (!state.reason.empty()) {
      failure_ += ": " + state.reason;
      state.exit_code == 0 ? log_warning(failure_) : log_error(failure_);
    }
    if (has_cancelled_) return exit_status_for_signal(first_signal);
    return state.exit_code;
  }

  const GangRequest request_;
  GangService service_;
  const milliseconds page_wait_;
  const pages::GangClient client_;
  const milliseconds lost_timeout_;
  pages::GangReader reader_;
  std::optional<OwnLines> own_lines_;  // set when the nodes are known
  std::optional<gangs::GangPhase> said_phase_;
  std::vector<pages::GangReader::Piece> taken_;  // not shown yet
  std::string waits_for_;
  std::size_t before_ = 0;
  std::optional<Clock::time_point> lost_since_;
  std::string lost_why_;
  std::string failure_;  // why it ended, for the error file
  bool has_cancelled_ = false;
  int num_signals_said_ = 0;    // num_signals when the cancellation was printed
  bool has_no_reader_[3] = {};  // by descriptor: nothing more is written to it
  int exit_status_ = 0;         // used if the gang is left to itself
};

}  // namespace

int run_gang(GangRequest request, const LaunchConfig& config, ServiceManager manager) {
  pages::GangClientOptions client;
  client.endpoints = request.endpoints;
  client.is_patient = false;  // GangJob repeats calls itself, and handles signals
  if (!config.token_file.empty())
    client.token = Secret::from_flag("--token-file", config.token_file);
  if (config.tls.any()) client.tls = security::make_client_context(config.tls);
  const auto job = std::make_unique<GangJob>(std::move(request), std::move(client),
                                             config.timeouts.rendezvous_lost, std::move(manager));
  const int exit_status = job->run();
  membership::JobEnd verdict;
  verdict.exit_code = exit_status;
  verdict.reason = job->failure();
  const std::string problem = leave_error_file(current_environment(), verdict);
  if (!problem.empty()) log_warning(problem);
  return exit_status;
}

}  // namespace ddprun::launcher
