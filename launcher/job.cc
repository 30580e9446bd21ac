// SPDX-License-Identifier: Apache-2.0
#include "launcher/job.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "common/check.h"
#include "common/env_names.h"
#include "common/exit_codes.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/signal_names.h"
#include "launcher/failure_report.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPatience{2'000};
// A reader that doesn't take the last output, as in "| less"; less where a signal has come.
constexpr milliseconds kConsoleTimeout{3'600'000};
constexpr milliseconds kSignalledConsoleTimeout{2'000};
constexpr milliseconds kFarewellTimeout{10'000};  // other nodes' agents, beyond --shutdown-timeout

bool is_ignored(int signal_number) {
  struct sigaction current {};
  return ::sigaction(signal_number, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

std::optional<int> terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

Job::Job(JobPlan plan)
    : plan_(std::move(plan)),
      begun_(Clock::now()),
      // A silent name service takes half of the time at most: the link's attempts have the rest.
      claim_(claim_endpoint(plan_.rendezvous, plan_.config.max_nodes,
                            Deadline(begun_ + plan_.config.rendezvous_timeout / 2))),
      io_(1),
      signals_(io_),
      patience_(io_),
      console_(io_) {
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) {
    const auto& warnings = plan_.config.preemption.signals;
    const bool warns = std::find(warnings.begin(), warnings.end(), number) != warnings.end();
    const bool nohup = number == SIGHUP && is_ignored(SIGHUP);
    if (!warns && !nohup) signals_.add(number);
  }
  if (!claim_.listeners.empty()) serve_rendezvous(std::move(claim_.listeners));
  agent::NodeAgentEvents events;
  events.tell = [this](LogLevel level, const std::string& text) { tell(level, text); };
  if (claim_.contested) events.unreached = [this] { succeed_rendezvous(); };
  events.exited = [this](const membership::agent_action::Exit& exit) { finish(exit); };
  agent_ = std::make_unique<agent::NodeAgent>(io_, console_, agent_options(), std::move(events));
  preemption_ = std::make_unique<PreemptionWatch>(
      io_, plan_.config.preemption, begun_,
      [this](membership::Preempted warning) { agent_->warn(std::move(warning)); });
}

Job::~Job() = default;

int Job::run() {
  if (!claim_.note.empty()) tell(LogLevel::kInfo, claim_.note);
  wait_for_signal();
  plan_.preflight.empty() ? begin() : run_preflight();
  io_.run();
  signals_.clear();  // no worker is left that one could do harm to: the next one ends ddprun
  const auto patience = signalled_ ? kSignalledConsoleTimeout : kConsoleTimeout;
  if (const std::size_t dropped = console_.finish(Deadline::after(patience)); dropped > 0) {
    log_warning("the last ", dropped,
                " bytes of the workers' output were not taken by their reader within ",
                patience.count() / 1000, " s: dropped");
  }
  DDPRUN_CHECK(exit_.has_value());
  write_to_stderr(failure_report(exit_->verdict,
                                 {.program = plan_.config.program,
                                  .max_restarts = plan_.config.max_restarts,
                                  .is_alone = plan_.config.max_nodes == 1 && plan_.num_workers == 1,
                                  .node_rank = agent_->node_rank(),
                                  .local = exit_->local}));
  return exit_->verdict.exit_code;
}

agent::NodeAgentOptions Job::agent_options() const {
  const LaunchConfig& config = plan_.config;
  const bool is_static = plan_.rendezvous.mode == RendezvousMode::kStatic;
  agent::NodeAgentOptions options;
  options.connect_to = claim_.connect_to;
  options.argv = plan_.program.argv;

  membership::AgentOptions& machine = options.machine;
  machine.endpoint = plan_.rendezvous.endpoint;
  machine.store_port = is_static ? 0 : config.master_port.value_or(0);
  machine.connect_timeout =
      std::chrono::duration_cast<milliseconds>(begun_ + config.rendezvous_timeout - Clock::now());
  machine.keep_alive_interval = config.keep_alive_interval;
  machine.prewarm = config.prewarm;
  machine.rendezvous_lost_timeout = config.rendezvous_lost_timeout;

  membership::Join& join = machine.join;
  join.run_id = plan_.rendezvous.job_id;
  join.instance = random_id();
  join.settings = {.min_nodes = config.min_nodes,
                   .max_nodes = config.max_nodes,
                   .max_restarts = config.max_restarts,
                   .max_node_losses = config.max_node_losses,
                   .max_preemptions = config.max_preemptions,
                   .no_progress_restarts = config.no_progress_restarts,
                   .exclude_after = config.exclude_after,
                   .spares = config.spares,
                   .restart_on_join = config.restart_on_join,
                   .hang_action = config.hang_action,
                   .rdzv_backend = is_static ? membership::kStaticBackend : "c10d"};
  join.timeouts.join = config.rendezvous_timeout;
  join.timeouts.last_call = config.last_call_timeout;
  join.timeouts.keep_alive = config.keep_alive_timeout;
  join.timeouts.start = config.start_timeout;
  join.timeouts.stop_grace = config.shutdown_timeout;
  join.timeouts.max_restart_delay = config.max_restart_delay;
  join.timeouts.exit_barrier = config.exit_barrier_timeout;
  join.timeouts.replacement = config.replacement_timeout;
  // Alone with its own rendezvous it can't be cut off: silence only means that this process stood
  // still (Ctrl-Z, a paused container).
  if (daemon_ && config.max_nodes == 1) join.timeouts.keep_alive = std::chrono::hours{24 * 365};
  join.node_rank = plan_.rendezvous.node_rank;
  join.num_workers = plan_.num_workers;
  join.host = host_name();
  join.pid = ::getpid();
  join.advertised_addr = config.local_addr;
  join.topology = plan_.topology;
  join.program = config.program;

  if (is_replaceable(config)) options.needs = plan_.needs;
  options.socket_parent = runtime_directory(plan_.environment);
  options.error_file_prefix = temporary_directory(plan_.environment) + "/ddprun-" + random_id();
  options.hang_limits = config.hang_limits;
  options.stacks_program = helper_program("ddprun-stacks");
  options.workers.prefix_output = plan_.num_workers > 1;
  options.environment.inherited = plan_.environment;
  options.environment.run_id = plan_.rendezvous.job_id;
  options.environment.role = config.role;
  options.environment.max_restarts = config.max_restarts;
  options.environment.num_workers = plan_.num_workers;
  options.environment.terminal_columns = terminal_columns();
  return options;
}

void Job::tell(LogLevel level, const std::string& text) {
  agent::LineMux& lines = console_.lines(agent::OutputStream::kStderr);
  lines.feed(own_lines_, own_line(level, text));
  console_.flush(agent::OutputStream::kStderr);
}

void Job::wait_for_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    if (exit_) {  // all is over but the farewell to the other nodes
      io_.stop();
      return;
    }
    if (!signalled_) {
      signalled_ = true;
      tell(LogLevel::kWarning,
           concat("got ", signal_name(number), ": stopping the workers (SIGKILL after ",
                  plan_.config.shutdown_timeout.count() / 1000.0,
                  " s); a second signal kills them now"));
    } else {
      tell(LogLevel::kWarning, "got " + signal_name(number) + " again: killing the workers");
    }
    preflight_.reset();  // its warden kills it
    agent_->signal(number);
  });
}

void Job::begin() {
  say_what_is_waited_for();
  agent_->start();
}

// Other nodes meet meanwhile, also where this node serves the rendezvous.
void Job::run_preflight() {
  agent::PreflightCommandOptions options;
  options.command = plan_.preflight;
  options.limit = plan_.config.preflight_timeout;
  Environment environment = plan_.environment;
  environment[env::kLocalWorldSize] = std::to_string(plan_.num_workers);
  environment[env::kRunId] = plan_.rendezvous.job_id;
  options.environment = to_strings(environment);
  preflight_ = std::make_unique<agent::PreflightCommand>(
      io_, console_, std::move(options), [this](const std::string& problem) {
        if (problem.empty()) return begin();
        membership::agent_action::Exit exit;
        exit.local = true;
        exit.verdict.exit_code = static_cast<int>(ExitCode::kRetryable);
        exit.verdict.reason = "preflight: " + plan_.preflight + ": " + problem;
        finish(exit);
      });
  preflight_->start();
}

// A person who waits is told for what. (Once connected, the rendezvous says which nodes miss.)
void Job::say_what_is_waited_for() {
  if (daemon_) return;
  patience_.expires_after(kPatience);
  patience_.async_wait([this](const boost::system::error_code& error) {
    if (error || agent_->has_reached_rendezvous() || exit_) return;
    tell(LogLevel::kInfo,
         concat("no answer yet from the rendezvous at ", to_string(claim_.connect_to), " (",
                plan_.rendezvous.origin, "): does ddprun run on that node? Trying for up to ",
                plan_.config.rendezvous_timeout.count() / 1000.0, " s (--rendezvous-timeout)"));
  });
}

void Job::serve_rendezvous(std::vector<UniqueFd> listeners) {
  rendezvous::DaemonOptions options;
  options.embedded = true;
  daemon_ = std::make_unique<rendezvous::Daemon>(io_, std::move(listeners), options);
}

// The rendezvous that had this node's port when it was claimed (an earlier job's, at its end) is
// not to be reached any more: this node serves, if nobody else here was faster.
void Job::succeed_rendezvous() {
  if (daemon_ || exit_) return;
  auto listeners = claim_again(plan_.rendezvous, claim_);
  if (listeners.empty()) return;
  serve_rendezvous(std::move(listeners));
  tell(LogLevel::kInfo, concat("the rendezvous that was at ", to_string(claim_.connect_to),
                               " has ended: serving it here"));
}

void Job::finish(const membership::agent_action::Exit& exit) {
  if (exit_) return;
  exit_ = exit;
  if (!exit.verdict.summary.empty()) tell(LogLevel::kInfo, exit.verdict.summary);
  if (!daemon_) {
    io_.stop();
    return;
  }
  // An excluded node whose user does not want it to end: the job goes on, and needs its rendezvous.
  const bool others_go_on = !exit.local && !signalled_ && daemon_->has_live_job();
  if (others_go_on) {
    tell(LogLevel::kWarning,
         concat("this node is out of the job (", exit.verdict.reason,
                "), but the job goes on and has its rendezvous here: serving it until the job is "
                "over (a signal ends both)"));
  }
  const auto serve =
      others_go_on ? rendezvous::Serve::kUntilJobsEnd : rendezvous::Serve::kUntilTimeout;
  daemon_->when_idle(plan_.config.shutdown_timeout + kFarewellTimeout, serve,
                     [this] { io_.stop(); });
}

}  // namespace ddprun::launcher
