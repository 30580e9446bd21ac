// SPDX-License-Identifier: Apache-2.0
#include "launcher/prepare.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/console.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/node_agent.h"
#include "agent/output/log_tree.h"
#include "agent/preflight_command.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/flood_limit.h"
#include "common/log.h"
#include "common/operation_facts.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/shell_words.h"
#include "common/signal_names.h"
#include "launcher/endpoint_claim.h"
#include "launcher/failure_report.h"
#include "launcher/metrics/metrics_server.h"
#include "launcher/preemption_options.h"
#include "launcher/report/job_records.h"
#include "launcher/step_token.h"
#include "launcher/terminal_text.h"
#include "rendezvous/asio/signals.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/systemd_notifier.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kSilentConnect{2'000};  // after this time the user is told
// A file system that doesn't answer now may never answer.
constexpr milliseconds kLogFileTimeout{10'000};
constexpr milliseconds kFarewellTimeout{10'000};  // other nodes', after --shutdown-timeout

// ddprun's log while a job runs, mostly about strangers at its ports. It is printed among the
// workers' lines, never blocks, and never floods the terminal. io thread only.
class ConsoleLog {
 public:
  using Tell = std::function<void(LogLevel, const std::string&)>;

  // Takes the log (common/log.h) until destroyed, then gives it back to log_to_stderr(). `tell`
  // puts a line on `console`'s stderr. Only one object at a time.
  ConsoleLog(const agent::Console& console, Tell tell) : console_(console), tell_(std::move(tell)) {
    DDPRUN_CHECK(g_current == nullptr);
    g_current = this;
    set_log_sink(
        [](LogLevel level, std::string_view message) { g_current->write(level, message); });
  }

  // Prints how many lines were dropped since the last one.
  ~ConsoleLog() {
    say_dropped();
    set_log_sink(&log_to_stderr);
    g_current = nullptr;
  }

  ConsoleLog(const ConsoleLog&) = delete;
  ConsoleLog& operator=(const ConsoleLog&) = delete;

 private:
  void write(LogLevel level, std::string_view message) {
    if (console_.is_full(agent::OutputStream::kStderr) ||
        (level < LogLevel::kError && !limit_.admit(Clock::now()))) {
      ++num_dropped_;
      return;
    }
    say_dropped();
    tell_(level, std::string(message));
  }

  void say_dropped() {
    if (num_dropped_ == 0) return;
    tell_(LogLevel::kWarning, concat(std::exchange(num_dropped_, 0),
                                     " line(s) of ddprun's log were dropped: nobody took them, or "
                                     "they were a flood"));
  }

  static inline ConsoleLog* g_current = nullptr;  // the log's sink is a plain function
  const agent::Console& console_;
  const Tell tell_;
  FloodLimit limit_{20, 1};  // 20 lines at once, 1 per second
  std::size_t num_dropped_ = 0;
};

// Tells once that this node is about to be taken away, and once that the job's time is over.
class PreemptionWatch {
 public:
  using Warn = std::function<void(membership::Preempted)>;

  // From now on these signals don't end this process. The time limit counts from `begun`.
  PreemptionWatch(boost::asio::io_context& io, const PreemptionOptions& options,
                  Clock::time_point begun, Warn warn)
      : options_(options), warn_(std::move(warn)), signals_(io), timer_(io) {
    for (const int number : options_.signals) signals_.add(number);
    if (!options_.signals.empty()) wait_for_signal();
    if (options_.time_limit) wait_for_time_limit(begun);
  }

 private:
  // Schedulers repeat the signal; the first one counts.
  void wait_for_signal() {
    on_each_signal(signals_, [this](int number) {
      if (std::exchange(warned_, true)) return;
      warn_({membership::Preempted::Kind::kNode, "got " + signal_name(number), options_.notice,
             signal_for_workers(number)});
    });
  }

  void wait_for_time_limit(Clock::time_point begun) {
    const Clock::time_point end = begun + *options_.time_limit;
    run_at(timer_, std::max(begun, end - options_.notice), [this, end] {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      warn_({membership::Preempted::Kind::kTimeLimit,
             concat("reaches the time limit of ", options_.time_limit->count() / 1000.0, " s"),
             std::max(left, std::chrono::milliseconds{0})});
    });
  }

  const PreemptionOptions options_;
  const Warn warn_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer timer_;
  bool warned_ = false;
};

// One node's part of a job: the rendezvous if this node serves it, the agent, the signals, and the
// report.
class NodeJob {
 public:
  // Takes the endpoint's port if this node serves. Throws as claim_endpoint().
  NodeJob(JobPlan plan, ServiceManager manager)
      : plan_(std::move(plan)),
        step_token_(plan_.step_token),
        begun_(Clock::now()),
        claim_(claim()),
        io_(1),
        notifier_(io_, std::move(manager)),
        signals_(io_),
        halts_(io_),
        patience_(io_),
        lifeline_(io_),
        console_(io_, console_options()) {
    log_ = std::make_unique<ConsoleLog>(
        console_, [this](LogLevel level, const std::string& text) { tell(level, text); });
    for (const int number : plan_.config.signals_to_handle.numbers) {
      const bool nohup = number == SIGHUP && is_ignored(SIGHUP);
      if (!nohup) signals_.add(number);
    }
    const bool is_watched =
        plan_.config.max_nodes > 1 || plan_.config.spares > 0 || claim_.listeners.empty();
    if (is_watched && !is_ignored(SIGTSTP)) halts_.add(SIGTSTP);
    std::vector<UniqueFd> metrics_listeners;
    if (plan_.config.metrics) metrics_listeners = bind_metrics(*plan_.config.metrics);
    if (!claim_.listeners.empty()) serve_rendezvous(std::move(claim_.listeners));
    make_cgroups();
    agent::NodeAgentEvents events;
    events.tell = [this](LogLevel level, const std::string& text) { tell(level, text); };
    events.unreached = [this](const std::string& why) { unreached(why); };
    events.exited = [this](const membership::agent_action::Exit& exit) { finish(exit); };
    const agent::OutputOptions& output = plan_.config.output;
    if (output.has_files()) {
      logs_ = std::make_shared<agent::LogTree>(output.log_dir, plan_.rendezvous.job_id);
    }
    records_ = std::make_unique<JobRecords>(plan_, begun_, console_, logs_);
    records_->listen(events);
    events.round_began = [this, next = std::move(events.round_began)](const auto& round) {
      if (!std::exchange(has_begun_, true)) say_place(round);
      if (round.first_global_rank == 0) say_store(round.world_size);
      find_stdin_rank(round.first_global_rank, round.world_size);
      if (next) next(round);
    };
    agent_ = std::make_unique<agent::NodeAgent>(io_, console_, agent_options(), std::move(events));
    if (plan_.config.metrics) serve_metrics(std::move(metrics_listeners));
    preemption_ = std::make_unique<PreemptionWatch>(
        io_, plan_.config.preemption, begun_,
        [this](membership::Preempted warning) { agent_->warn(std::move(warning)); });
  }

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run() {
    if (!claim_.note.empty()) tell(LogLevel::kInfo, claim_.note);
    wait_for_signal();
    wait_for_halt();
    wait_for_abandonment();
    plan_.config.preflight_doctor == DoctorGate::kOff ? run_preflight() : run_doctor();
    notifier_.ready([this] { return status(); });
    io_.run();
    metrics_.reset();
    if (daemon_) forget_step_token();  // for a job that never began
    log_.reset();
    if (lifeline_.is_open()) lifeline_.release();
    if (cgroups_) cgroups_->close();
    signals_.clear();  // no workers are left: the next signal ends ddprun
    agent::remove_leftover_directories(runtime_directory(plan_.environment));
    const auto file_patience = signalled_ ? kSignalledReaderPatience : kLogFileTimeout;
    if (!console_.finish_files(Deadline::after(file_patience)) || !reported_) {
      for (const std::string& loss : console_.losses()) tell(LogLevel::kWarning, loss);
    }
    const auto patience = signalled_ ? kSignalledReaderPatience : kReaderPatience;
    if (const std::size_t dropped = console_.finish(Deadline::after(patience)); dropped > 0) {
      log_warning("the last ", dropped,
                  " bytes of the workers' output were not taken by their reader within ",
                  patience.count() / 1000, " s: dropped");
      reported_ = false;  // the lost output had the report
    }
    for (const std::string& problem : records_->finish()) log_warning(problem);
    if (!reported_) report(report_text());
    return exit_->verdict.exit_code;
  }

 private:
  // Must be called when a round begins.
  void find_stdin_rank(int first_global_rank, int world_size) {
    const int rank = plan_.config.output.stdin_rank.value_or(0);
    const bool is_here = rank >= first_global_rank && rank < first_global_rank + plan_.num_workers;
    if (plan_.channel && is_here) plan_.channel->say(channel::Room{0, true});
    if (rank < world_size) return;
    tell(LogLevel::kWarning, concat("--stdin-rank=", rank, ": there is no rank ", rank,
                                    ", the last one is ", world_size - 1, "; no rank has stdin"));
  }

  // Prints the ranks of each node but the first. These often print nothing, so this shows that the
  // job runs.
  void say_place(const membership::StartRound& round) {
    if (round.node_rank == 0 || plan_.channel || ::isatty(STDERR_FILENO) != 1) return;
    std::vector<int> ranks(static_cast<std::size_t>(plan_.num_workers));
    std::iota(ranks.begin(), ranks.end(), round.first_global_rank);
    tell(LogLevel::kInfo, concat("this node runs ", ranks_text(ranks), " of ", round.world_size,
                                 "; rank 0 is on ", round.master_node_addr));
  }

  // Only one node of the job prints it, once. A single worker needs no store.
  void say_store(int world_size) {
    if (plan_.proxy_cause.empty() || world_size == 1 || std::exchange(said_store_, true)) return;
    tell(LogLevel::kInfo, concat(plan_.proxy_cause,
                                 ": the workers' store is reached through their node's own proxy "
                                 "alone (--store=proxy), so MASTER_ADDR is ",
                                 membership::kProxyAddr));
  }

  // Serves also before the rendezvous is reached.
  void serve_metrics(std::vector<UniqueFd> listeners) {
    if (plan_.config.metrics->port == 0) {
      tell(LogLevel::kInfo, "metrics at " + metrics_url(listeners));
    }
    metrics_ = std::make_unique<MetricsServer>(
        io_, std::move(listeners),
        [this](metrics::Format format) {
          return agent::metrics_to_text(agent_->metrics(), format);
        },
        MetricsServer::Options());
  }

  EndpointClaim claim() {
    const bool serves = plan_.channel && plan_.channel->serves;
    Endpoint& endpoint = plan_.rendezvous.endpoint;
    if (serves) endpoint.port = 0;
    // A silent name service takes at most half of the time, and leaves the rest for the link's
    // attempts.
    EndpointClaim claim = claim_endpoint(plan_.rendezvous, plan_.config.max_nodes,
                                         Deadline(begun_ + plan_.config.connect_timeout / 2));
    if (serves) {
      endpoint.port = claim.connect_to.port;
      plan_.channel->say(channel::Serving{to_string(endpoint)});
    }
    return claim;
  }

  // Returns the status for systemd.
  std::string status() const {
    const std::string job = "job " + plan_.rendezvous.job_id;
    if (exit_) return job + ": over";
    if (agent_->node_rank() < 0) return job + ": waits for its nodes";
    return concat(job, ": runs, node rank ", agent_->node_rank());
  }

  agent::ConsoleOptions console_options() {
    agent::ConsoleOptions options;
    options.slow_reader = plan_.config.output.slow_reader;
    options.notice = [this](const std::string& text) { tell(LogLevel::kWarning, text); };
    return options;
  }

  // With many nodes the launcher prints the report that all send.
  void report(const std::string& text) const {
    if (plan_.channel) {
      channel::End end;
      end.by_job = !exit_->local;
      end.last_words = text.substr(0, channel::kMostTextBytes);
      plan_.channel->say(end);
    } else {
      write_to_stderr(text);
    }
  }

  std::string report_text() const {
    DDPRUN_CHECK(exit_.has_value());
    return failure_report(exit_->verdict,
                          {.program = plan_.config.program,
                           .max_restarts = plan_.config.max_restarts,
                           .is_alone = plan_.config.max_nodes == 1 && plan_.num_workers == 1,
                           .node_rank = agent_->node_rank(),
                           .local = exit_->local,
                           .job_id = plan_.rendezvous.job_id});
  }

  // Returns the endpoints as this node reaches them.
  std::vector<Endpoint> connect_to() const {
    std::vector<Endpoint> all = plan_.rendezvous.endpoints();
    all.front() = claim_.connect_to;
    return all;
  }

  agent::NodeAgentOptions agent_options() const {
    const LaunchConfig& config = plan_.config;
    const bool is_static = plan_.rendezvous.mode == RendezvousMode::kStatic;
    agent::NodeAgentOptions options;
    options.connect_to = connect_to();
    // A serving node connects to its own address, but the certificate is for the endpoint's host.
    const bool is_one = plan_.rendezvous.others.empty();
    options.security = {plan_.token, plan_.tls,
                        is_one ? plan_.rendezvous.endpoint.host : std::string()};
    options.security.token_is_of_one_run = !plan_.step_token.empty();
    options.security.leads_here = [this](int socket) {
      return daemon_ && daemon_->await_own(socket);
    };
    options.command = worker_command(plan_);
    // Both waits must be too short to look like a lost node.
    options.warm = {config.preload, config.preload_auto, config.preload_cache,
                    std::min(config.preload_timeout, config.timeouts.start / 2),
                    std::min<milliseconds>(milliseconds{2'000}, config.timeouts.keep_alive / 3)};

    membership::AgentOptions& machine = options.machine;
    machine.endpoints = plan_.rendezvous.endpoints();
    machine.store_port = is_static ? 0 : config.master_port.value_or(0);
    machine.connect_timeout =
        std::chrono::duration_cast<milliseconds>(begun_ + config.connect_timeout - Clock::now());
    machine.keep_alive_interval = config.keep_alive_interval;
    machine.prewarm = config.prewarm;
    machine.in_own_job = plan_.environment.contains(env::kRound) &&
                         find_variable(plan_.environment, env::kRunId) == plan_.rendezvous.job_id;

    membership::Join& join = machine.join;
    join.run_id = plan_.rendezvous.job_id;
    join.instance = random_id();
    join.settings = static_cast<const membership::JobSettings&>(config);
    if (is_static) join.settings.rdzv_backend = membership::kStaticBackend;
    join.settings.store = config.wanted_store.value_or(membership::StoreMode::kDirect);
    join.timeouts = config.timeouts;
    // Alone with its own rendezvous a node can't be cut off. Silence only means that this process
    // stood still (Ctrl-Z, a paused container).
    if (daemon_ && config.max_nodes == 1) join.timeouts.keep_alive = std::chrono::hours{24 * 365};
    join.node_rank = plan_.rendezvous.node_rank;
    join.num_workers = plan_.num_workers;
    join.host = host_name();
    join.pid = ::getpid();
    join.advertised_addr = config.local_addr;
    join.topology = plan_.topology;
    join.program = config.program;
    join.role = config.role;
    join.user_id = ::getuid();

    if (is_replaceable(config)) options.needs = plan_.needs;
    options.cgroups = cgroups_.get();
    options.logs = logs_;
    options.socket_parent = runtime_directory(plan_.environment);
    options.hang_limits = config.hang_limits;
    options.stacks_program = helper_program("ddprun-stacks");
    options.workers.several_workers = plan_.num_workers > 1 || plan_.channel;
    options.workers.output = config.output;
    options.workers.output.role_name = config.role;
    options.workers.cpus =
        plan_.placement.cpus.empty() ? plan_.isolation.affinity : plan_.placement.cpus;
    options.environment = worker_environment_options(plan_);
    return options;
  }

  // Must run before this process has children, since these would stay in its old cgroup.
  void make_cgroups() {
    if (!plan_.isolation.makes_cgroups) return;
    try {
      cgroups_ = std::make_unique<agent::WorkerCgroups>(std::make_shared<agent::CgroupTree>(),
                                                        plan_.isolation, ::getpid());
    } catch (const Error& error) {
      if (plan_.config.worker_limits.required) throw;
      tell(LogLevel::kWarning, concat("the workers have no limits: ", error.what()));
    }
  }

  void tell(LogLevel level, const std::string& text) {
    if (!log_enabled(level)) return;
    agent::LineMux& lines = console_.lines(agent::OutputStream::kStderr);
    own_lines_.urgent = true;
    lines.feed(own_lines_, own_line(level, text), Clock::now());
    console_.flush(agent::OutputStream::kStderr);
  }

  void wait_for_signal() {
    on_each_signal(signals_, [this](int number) { got_signal(number); });
  }

  // Handles Ctrl-Z: this process sends the node's signs of life, so the rendezvous would lose a
  // stopped node. The only node of a job stops as any program does if it serves the rendezvous.
  void wait_for_halt() {
    on_each_signal(halts_, [this](int) {
      tell(LogLevel::kWarning,
           concat("got SIGTSTP (Ctrl-Z): this node goes on, for a stopped one would count as lost "
                  "(kill -STOP ",
                  ::getpid(), " stops it all the same)"));
    });
  }

  // `is_users`: false for the signal that stands for the channel's end.
  void got_signal(int number, bool is_users = true) {
    if (is_users && echo_.is_echo(number, Clock::now())) {
      tell(LogLevel::kWarning, SignalEcho::text(number, ", as by a wrapper that passes it on") +
                                   "; the next signal kills the workers");
      return;
    }
    if (exit_) return io_.stop();  // only the farewell to other nodes is left
    if (!signalled_) {
      signalled_ = true;
      notifier_.stopping();
      const bool goes_on_elsewhere =
          plan_.config.min_nodes < plan_.config.max_nodes && daemon_ == nullptr;
      tell(LogLevel::kWarning,
           has_begun_
               ? concat("got ", signal_name(number), ": stopping the workers (SIGKILL after ",
                        plan_.config.timeouts.shutdown.count() / 1000.0,
                        " s); a second signal kills them now",
                        goes_on_elsewhere ? ", and ends the job on the other nodes" : "")
               : concat("got ", signal_name(number), ": leaving; no worker was started"));
    } else {
      tell(LogLevel::kWarning, "got " + signal_name(number) + " again: killing the workers");
    }
    preflight_.reset();  // its warden kills it
    agent_->signal(number, is_users);
  }

  // Leaves the job when the channel ends. The job goes on without this node if it can, but not if
  // its rendezvous is here.
  void wait_for_abandonment() {
    if (!plan_.channel) return;
    lifeline_.assign(UnderChannel::kFd);
    UnderChannel::watch();
    await_abandonment();
  }

  void await_abandonment() {
    when_readable(lifeline_, [this] {
      pollfd end{.fd = lifeline_.native_handle(), .events = POLLIN, .revents = 0};
      if (::poll(&end, 1, 0) == 0) return await_abandonment();
      const int number = plan_.channel->stop_signal;
      if (exit_ || signalled_ || daemon_) return got_signal(number, false);
      signalled_ = true;
      preflight_.reset();
      agent_->abandon("the connection to its launcher was lost", number);
    });
  }

  void begin() {
    lose_patience();
    agent_->start(unfit_);
  }

  agent::PreflightCommandOptions preflight_options(std::string command) const {
    agent::PreflightCommandOptions options;
    options.command = std::move(command);
    options.limit = plan_.config.preflight_timeout;
    Environment environment = plan_.environment;
    environment[env::kLocalWorldSize] = std::to_string(plan_.num_workers);
    environment[env::kRunId] = plan_.rendezvous.job_id;
    options.environment = to_strings(environment);
    return options;
  }

  // Runs the doctor's checks. If one fails, the other nodes are told why this one stays out; a job
  // of one node ends. Doesn't check the rendezvous: this node may be about to serve it, and a
  // failure would show soon.
  void run_doctor() {
    constexpr int kFailed = 2;  // as Nagios has it
    const bool from_warn = plan_.config.preflight_doctor == DoctorGate::kWarn;
    auto options =
        preflight_options(concat("exec ", shell_quoted(helper_program("ddprunctl")),
                                 " doctor --skip=endpoint --gate=", from_warn ? "warn" : "fail"));
    options.verdict_code = kFailed;
    preflight_ = std::make_unique<agent::PreflightCommand>(
        io_, console_, std::move(options), [this](const std::string& problem) {
          if (problem.empty()) {
            boost::asio::post(io_, [this] { run_preflight(); });
          } else if (is_replaceable(plan_.config)) {
            unfit_ = "doctor: " + problem;
            begin();
          } else {
            stay_out("preflight: doctor: " + problem);
          }
        });
    preflight_->start();
  }

  void stay_out(const std::string& reason) {
    membership::agent_action::Exit exit;
    exit.local = true;
    exit.verdict.exit_code = static_cast<int>(ExitCode::kRetryable);
    exit.verdict.reason = reason;
    finish(exit);
  }

  // Runs while other nodes meet, even if this node serves the rendezvous.
  void run_preflight() {
    if (exit_ || signalled_) return;
    if (plan_.config.preflight.empty()) return begin();
    auto options = preflight_options(plan_.config.preflight);
    preflight_ = std::make_unique<agent::PreflightCommand>(
        io_, console_, std::move(options), [this](const std::string& problem) {
          if (problem.empty()) return begin();
          stay_out(concat("preflight \"", plan_.config.preflight, "\" ", problem));
        });
    preflight_->start();
  }

  void unreached(const std::string& why) {
    if (claim_.contested) succeed_rendezvous();
    const bool is_first = std::exchange(why_unreached_, why).empty();
    if (is_first && impatient_ && !exit_) say_what_is_waited_for();
  }

  // Tells the user what is waited for, and what is known of it. (Once connected, the rendezvous
  // tells which nodes are missing.)
  void say_what_is_waited_for() {
    tell(LogLevel::kInfo,
         concat("no answer yet from the rendezvous at ", to_string(connect_to()), " (",
                plan_.rendezvous.origin, "): ",
                why_unreached_.empty() ? "the first attempt is still under way" : why_unreached_,
                plan_.rendezvous.others.empty() ? ". Does ddprun run on that node?"
                                                : ". Does a ddprund run on these nodes?",
                " Trying for up to ", plan_.config.timeouts.join.count() / 1000.0,
                " s (--rendezvous-timeout)"));
  }

  void lose_patience() {
    if (daemon_) return;
    run_after(patience_, kSilentConnect, [this] {
      if (agent_->has_reached_rendezvous() || exit_) return;
      impatient_ = true;
      say_what_is_waited_for();
    });
  }

  void serve_rendezvous(std::vector<UniqueFd> listeners) {
    rendezvous::DaemonOptions options;
    options.embedded = true;
    options.embedded_for = plan_.rendezvous.job_id;
    options.token = plan_.token;
    // When a node hears of the job's end, it may start the next ddprun of this step, which makes a
    // token file of its own.
    options.job_over = [this](const std::string& job) {
      if (job == plan_.rendezvous.job_id) forget_step_token();
    };
    if (plan_.tls) options.tls = security::make_server_context(plan_.tls);
    if (plan_.tls && !options.tls) {
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("--tls-ca: this node serves the rendezvous at ",
                 to_string(plan_.rendezvous.endpoint),
                 ", for which it needs --tls-cert and --tls-key, too (or start ddprund there)"));
    }
    const bool is_open = !options.token && !options.tls;
    if (is_open && std::ranges::any_of(listeners, [](const UniqueFd& listener) {
          return !local_address(listener.get()).is_loopback();
        })) {
      tell(LogLevel::kInfo,
           concat("trusts the network: whoever reaches ", to_string(plan_.rendezvous.endpoint),
                  " can join and end this job (--token-file keeps others out)"));
    }
    if (!plan_.step_token.empty()) {
      tell(LogLevel::kInfo,
           concat("only users who can read ", plan_.step_token, ", which the nodes of the ",
                  plan_.rendezvous.origin, " made, can join this job"));
    }
    daemon_ = std::make_unique<rendezvous::Daemon>(io_, std::move(listeners), options);
  }

  // Removes the token's file once: later the name may be another job's.
  void forget_step_token() {
    const std::string path = std::exchange(step_token_, {});
    if (!path.empty()) remove_step_token(path);
  }

  // An earlier job's rendezvous had this node's port, and has ended. This node serves now, if no
  // other process here was faster.
  void succeed_rendezvous() {
    if (daemon_ || exit_) return;
    auto listeners = claim_again(plan_.rendezvous, claim_);
    if (listeners.empty()) return;
    serve_rendezvous(std::move(listeners));
    tell(LogLevel::kInfo, concat("the rendezvous that was at ", to_string(claim_.connect_to),
                                 " has ended: serving it here"));
  }

  // Prints the report with the lines that wait for stderr's reader.
  void report_now() {
    for (const std::string& loss : console_.losses()) tell(LogLevel::kWarning, loss);
    own_lines_.urgent = true;
    console_.lines(agent::OutputStream::kStderr).feed(own_lines_, report_text(), Clock::now());
    console_.flush(agent::OutputStream::kStderr);
    reported_ = true;
  }

  // Prints that jobs go on here: the user would not expect that ddprun doesn't end yet.
  void say_what_goes_on(const std::vector<std::string>& jobs) {
    if (std::find(jobs.begin(), jobs.end(), plan_.rendezvous.job_id) != jobs.end()) {
      tell(LogLevel::kWarning,
           concat("this node is out of the job (", exit_->verdict.reason,
                  "), but the job goes on and has its rendezvous here: serving it until the job is "
                  "over (a signal ends both)"));
      return;
    }
    tell(
        LogLevel::kWarning,
        concat("this node's job is over, but other jobs have their rendezvous here: ", listed(jobs),
               "; serving them until they are over (a signal ends them, too; ddprund serves jobs "
               "that don't depend on each other)"));
  }

  void finish(const membership::agent_action::Exit& exit) {
    if (exit_) return;
    exit_ = exit;
    records_->ended(exit, agent_->node_rank(), agent_->flight_recorders());
    // The launcher that started this ddprun knows more about what was decided here, and may end
    // later.
    if (!plan_.channel || !exit.local) {
      const std::string problem = leave_error_file(plan_.environment, exit.verdict);
      if (!problem.empty()) tell(LogLevel::kWarning, problem);
    }
    if (!exit.verdict.summary.empty()) tell(LogLevel::kInfo, exit.verdict.summary);
    for (const std::string& node : exit.verdict.excluded) {
      tell(LogLevel::kWarning, "left out of the job: " + node);
    }
    if (!daemon_) {
      io_.stop();
      return;
    }
    std::vector<std::string> jobs;
    // A node that is unfit itself still serves the others.
    if ((!exit.local || !unfit_.empty()) && !signalled_) jobs = daemon_->live_jobs();
    // The next steps are for other nodes, and may take long.
    if (!plan_.channel && (!jobs.empty() || plan_.config.max_nodes > 1)) report_now();
    if (!jobs.empty()) say_what_goes_on(jobs);
    const auto serve =
        jobs.empty() ? rendezvous::Serve::kUntilTimeout : rendezvous::Serve::kUntilJobsEnd;
    daemon_->when_idle(plan_.config.timeouts.shutdown + kFarewellTimeout, serve,
                       [this] { io_.stop(); });
  }

  // Constant after construction.
  JobPlan plan_;            // constant after claim()
  std::string step_token_;  // file that this node removes if it serves; empty: none
  const Clock::time_point begun_;
  EndpointClaim claim_;

  boost::asio::io_context io_;
  rendezvous::SystemdNotifier notifier_;
  boost::asio::signal_set signals_;
  boost::asio::signal_set halts_;  // SIGTSTP, if somebody would miss this node
  boost::asio::steady_timer patience_;
  boost::asio::posix::stream_descriptor lifeline_;  // set under a channel
  agent::Console console_;
  agent::LineSource own_lines_;           // ddprun's own lines among the workers'
  std::shared_ptr<agent::LogTree> logs_;  // null: no files; the agent and log thread own it, too
  std::unique_ptr<JobRecords> records_;
  std::unique_ptr<ConsoleLog> log_;
  std::unique_ptr<rendezvous::Daemon> daemon_;
  std::unique_ptr<agent::WorkerCgroups> cgroups_;  // null: none
  std::unique_ptr<agent::NodeAgent> agent_;
  std::unique_ptr<MetricsServer> metrics_;  // null: not served
  std::unique_ptr<PreemptionWatch> preemption_;
  std::unique_ptr<agent::PreflightCommand> preflight_;  // null: none runs
  std::optional<membership::agent_action::Exit> exit_;
  std::string why_unreached_;  // the last failure to reach the rendezvous; empty: none
  std::string unfit_;          // why this node stays out of the job, for other nodes
  bool impatient_ = false;     // patience_ is over
  bool signalled_ = false;
  bool has_begun_ = false;  // this node had a first round
  SignalEcho echo_;
  bool reported_ = false;
  bool said_store_ = false;  // say_store() has printed it
};

}  // namespace

int run_job(JobPlan plan, ServiceManager manager) {
  return std::make_unique<NodeJob>(std::move(plan), std::move(manager))->run();
}

}  // namespace ddprun::launcher
