// SPDX-License-Identifier: Apache-2.0
// ddprun-agent: a node's standing agent.
#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "agent/monitor/node_monitor.h"
#include "agent/standing/gang_output.h"
#include "agent/standing/gang_process.h"
#include "agent/standing/node_link.h"
#include "agent/standing/standing_metrics.h"
#include "agent/standing/standing_options.h"
#include "common/ending.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/secret.h"
#include "common/service_manager.h"
#include "common/signal_names.h"
#include "common/standard_streams.h"
#include "common/text.h"
#include "launcher/metrics/metrics_server.h"
#include "launcher/terminal_text.h"
#include "rendezvous/asio/signals.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/daemon/systemd_notifier.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;
using namespace ddprun::launcher;
namespace asio = boost::asio;

// How long slots stay taken after a gang could not begin because of its node.
constexpr std::chrono::seconds kRest{10};
// The limit from reporting a gang's end until the rendezvous forgets it.
constexpr std::chrono::milliseconds kLastWordsLimit{1'000};

std::string own_user() {
  const passwd* entry = ::getpwuid(::geteuid());  // only once, before there are threads
  if (entry == nullptr || !gangs::is_gang_name(entry->pw_name)) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("uid ", ::geteuid(), " has no user name that a gang can be for"));
  }
  return entry->pw_name;
}

membership::LinkSecurity security_of(const StandingOptions& options) {
  membership::LinkSecurity security;
  if (!options.token_file.empty())
    security.token = Secret::from_flag("--token-file", options.token_file);
  if (options.tls.any()) security.tls = security::make_client_context(options.tls);
  security.program = "ddprun-agent";
  security.obeys_commands = true;
  return security;
}

// Runs a ddprun for each gang that it is given, reports how it ended, and lets others read its
// output (docs/nodes.md). io thread only.
class StandingAgent {
 public:
  // Throws Error if a file, directory or port can't be used.
  StandingAgent(StandingOptions options, Environment environment, ServiceManager manager)
      : options_(std::move(options)),
        environment_(std::move(environment)),
        instance_(random_id()),
        program_(own_folder() + "/ddprun"),
        user_(own_user()),
        io_(1),
        notifier_(io_, std::move(manager)),
        signals_(io_, SIGTERM, SIGINT, SIGQUIT),
        end_timer_(io_) {
    notifier_.outlive_signals("standing on", [this] { return reload(); });
    if (::access(program_.c_str(), X_OK) != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat(program_, ": ", errno_text(errno), "; it runs the jobs"));
    }
    output_.emplace(io_, options_.directory, options_.node,
                    [this](const gangs::OutputAnswer& answer) {
                      if (link_) link_->send(answer);
                    });
    gangs::NodeLink::Handlers handlers;
    handlers.opened = [this] { say_hello(); };
    handlers.message = [this](const gangs::QueueMessage& message) { heard(message); };
    handlers.away = [this](const std::string& why) {
      is_connected_ = false;
      log_warning("the ddprund at ", options_.endpoint_text, " is away: ", why, "; trying on");
    };
    handlers.failed = [this](const std::string& why) {
      log_error(why);
      exit_status_ = static_cast<int>(ExitCode::kUsage);
      leave();
    };
    if (options_.metrics) serve_metrics();
    link_.emplace(io_, options_.endpoints, security_of(options_), std::move(handlers));
  }

  // Runs until a signal ends it, or the rendezvous refuses it for good. Returns the exit status.
  int run() {
    if (const std::string why = enter_supervisor_leaf(); !why.empty()) log_warning(why);
    remove_old_output();
    wait_for_signal();
    log_info("node ", options_.node, " of ", user_, ", ", options_.slots, " slots, stands at ",
             options_.endpoint_text);
    notifier_.ready([this] { return status(); });
    io_.run();
    return exit_status_;
  }

 private:
  struct Part {
    gangs::HeldPart held;
    std::shared_ptr<GangProcess> process;  // null: it has ended, or never began
    std::chrono::milliseconds stop_time{0};
    bool has_begun = false;  // ddprun is executed
    bool is_stopping = false;
    std::unique_ptr<asio::steady_timer> kill_timer;
    // Set if it never began because of this node: its slots stay taken.
    std::unique_ptr<asio::steady_timer> rest_timer;
  };

  int slots_used() const {
    int used = 0;
    for (const auto& [gang, part] : parts_) used += part.held.ended ? 0 : part.held.slots;
    return used;
  }

  std::string status() const {
    return concat(is_connected_ ? "connected to " : "looks for ", options_.endpoint_text, "; ",
                  slots_used(), " of ", options_.slots, " slots in use");
  }

  // Serves metrics from the start, also while no ddprund is reached.
  void serve_metrics() {
    std::vector<UniqueFd> listeners = bind_metrics(*options_.metrics);
    if (options_.metrics->port == 0) log_info("metrics at ", metrics_url(listeners));
    agent::NodeMonitorOptions readings;
    readings.gpus_program = helper_program("ddprun-gpus");
    node_monitor_.emplace(io_, std::move(readings), nullptr);
    metrics_.emplace(
        io_, std::move(listeners),
        [this](metrics::Format format) { return standing_metrics_to_text(metrics(), format); },
        MetricsServer::Options());
  }

  StandingMetrics metrics() {
    StandingMetrics all;
    all.node = options_.node;
    all.user = user_;
    all.connected = is_connected_;
    all.reconnects = num_welcomes_ > 0 ? num_welcomes_ - 1 : 0;
    all.slots = options_.slots;
    all.slots_used = slots_used();
    for (const auto& [gang, part] : parts_) {
      if (part.held.ended) continue;
      ++(part.is_stopping ? all.num_stopping : part.has_begun ? all.num_running : all.num_starting);
    }
    all.counts = counts_;
    all.readings = node_monitor_->read();
    all.process = metrics::own_use();
    return all;
  }

  void say_hello() {
    gangs::NodeHello hello;
    hello.version = DDPRUN_VERSION;
    hello.instance = instance_;
    hello.node = options_.node;
    hello.user = user_;
    hello.uid = ::geteuid();
    hello.slots = options_.slots;
    for (const auto& [gang, part] : parts_) hello.gangs.push_back(part.held);
    link_->send(hello);
  }

  void heard(const gangs::QueueMessage& message) {
    if (variants::holds_alternative<gangs::Welcome>(message)) {
      is_connected_ = true;
      ++num_welcomes_;
      log_info("connected to the ddprund at ", options_.endpoint_text);
    } else if (const auto* begin = variants::get_if<gangs::StartPart>(&message)) {
      start(*begin);
    } else if (const auto* end = variants::get_if<gangs::StopPart>(&message)) {
      const auto part = parts_.find(end->gang);
      if (part != parts_.end()) stop(part->second);
    } else if (const auto* forget = variants::get_if<gangs::ForgetPart>(&message)) {
      const auto part = parts_.find(forget->gang);
      if (part != parts_.end() && part->second.held.ended) parts_.erase(part);
      if (!is_leaving_) unread_.erase(forget->gang);
      finish_if_idle();
    } else if (const auto* request = variants::get_if<gangs::OutputRequest>(&message)) {
      const auto part = parts_.find(request->gang);
      const bool is_read =
          output_->read(*request, part != parts_.end() && !part->second.held.ended);
      is_read ? void(unread_.erase(request->gang)) : void(unread_.insert(request->gang));
      finish_if_idle();
    }
  }

  void start(const gangs::StartPart& start) {
    if (!gangs::is_gang_name(start.gang)) return;
    const auto [known, is_new] = parts_.try_emplace(start.gang);
    Part& part = known->second;
    if (!is_new) {
      if (!part.held.ended) return link_->send(gangs::PartStarted{start.gang});
      return link_->send(gangs::PartEnded{start.gang, part.held.exit_code, part.held.reason});
    }
    part.held.gang = start.gang;
    part.held.slots = start.slots;
    part.stop_time = std::chrono::milliseconds(start.stop_ms);
    if (is_leaving_) {
      return end_part(part, GangEnd::kRefused, static_cast<int>(ExitCode::kRetryable),
                      "its agent is being stopped");
    }
    remove_old_output();
    try {
      GangOutput::Files files = output_->open(start.gang);
      GangCommand command;
      command.argv = gang_arguments(start, options_, program_);
      command.environment = gang_environment(start, environment_);
      command.directory = start.directory;
      command.out = std::move(files.out);
      command.err = std::move(files.err);
      part.process =
          GangProcess::start(io_, std::move(command),
                             {[this, gang = start.gang] { began(parts_.at(gang)); },
                              [this, gang = start.gang](int wait_status, const std::string& why) {
                                ended(parts_.at(gang), wait_status, why);
                              }});
    } catch (const Error& error) {
      const bool is_ours =
          error.code() == ErrorCode::kSystem || error.code() == ErrorCode::kResourceExhausted;
      is_ours ? node_failed(part, error.what()) : could_not_begin(part, error.what());
    }
  }

  // Called when a gang can't begin because of this node. Its slots stay taken for a while.
  // Otherwise the node would take each queued gang, and end it, before another node had room for
  // it.
  void node_failed(Part& part, const std::string& why) {
    log_error("gang ", part.held.gang, " can't begin, which is this node's fault: ", why, "; for ",
              kRest.count(), " s no other one gets its ", counted(part.held.slots, "slot"));
    part.rest_timer = std::make_unique<asio::steady_timer>(io_, kRest);
    part.rest_timer->async_wait([this, gang = part.held.gang, why](boost::system::error_code) {
      const auto found = parts_.find(gang);
      if (found == parts_.end() || found->second.held.ended) return;
      end_part(found->second, GangEnd::kRefused, static_cast<int>(ExitCode::kRetryable), why);
    });
  }

  void began(Part& part) {
    part.has_begun = true;
    ++counts_.begun;
    log_info("gang ", part.held.gang, " begins, ", counted(part.held.slots, "slot"));
    link_->send(gangs::PartStarted{part.held.gang});
  }

  void could_not_begin(Part& part, const std::string& why) {
    log_warning("gang ", part.held.gang, " can't begin: ", why);
    end_part(part, GangEnd::kRefused, static_cast<int>(ExitCode::kUsage), why);
  }

  void remove_old_output() const {
    if (!options_.keep_output) return;
    output_->remove_older_than(*options_.keep_output, [this](const std::string& gang) {
      const auto part = parts_.find(gang);
      return part != parts_.end() && !part->second.held.ended;
    });
  }

  void stop(Part& part) {
    if (part.held.ended || std::exchange(part.is_stopping, true)) return;
    if (part.rest_timer) return void(part.rest_timer->cancel());  // its end is reported now
    log_info("gang ", part.held.gang, " is stopped");
    part.process->signal(SIGTERM);
    part.kill_timer = std::make_unique<asio::steady_timer>(io_, part.stop_time);
    part.kill_timer->async_wait([process = part.process](boost::system::error_code error) {
      if (!error) process->signal(SIGKILL);
    });
  }

  void ended(Part& part, int wait_status, const std::string& why) {
    if (!why.empty()) return could_not_begin(part, why);
    const bool is_killed = WIFSIGNALED(wait_status);
    const int code =
        is_killed ? exit_status_for_signal(WTERMSIG(wait_status)) : WEXITSTATUS(wait_status);
    std::string reason;
    if (is_killed) {
      reason = concat("ddprun was ended by ", signal_name(WTERMSIG(wait_status)));
    } else if (const std::string trouble = output_->trouble(part.held.gang); !trouble.empty()) {
      // The reason that ddprun gave would be in that output.
      reason = concat("ddprun ended with ", code, ", what it printed may be lost: ", trouble);
    }
    log_info("gang ", part.held.gang, " has ended with ", code, reason.empty() ? "" : ": ", reason);
    const GangEnd how = part.is_stopping ? GangEnd::kStopped
                        : code == 0      ? GangEnd::kSuccess
                                         : GangEnd::kFailure;
    end_part(part, how, code, reason);
  }

  void end_part(Part& part, GangEnd how, int exit_code, const std::string& reason) {
    ++counts_.of(how);
    part.process.reset();
    part.kill_timer.reset();
    part.rest_timer.reset();
    part.held.ended = true;
    part.held.exit_code = exit_code;
    part.held.reason = reason;
    output_->ended(part.held.gang);
    link_->send(gangs::PartEnded{part.held.gang, exit_code, reason});
    finish_if_idle();
  }

  bool reload() {
    const bool has_files = !options_.token_file.empty() || options_.tls.any();
    if (has_files) link_->use(security_of(options_));
    return has_files;
  }

  void wait_for_signal() {
    on_each_signal(signals_, [this](int number) {
      if (echo_.is_echo(number, Clock::now())) {
        log_info(SignalEcho::text(number));
      } else if (is_leaving_) {  // a second signal: kills at once
        for (auto& [gang, part] : parts_) {
          if (part.process) part.process->signal(SIGKILL);
        }
      } else {
        log_info("stopping: ", signal_name(number), ", ", counted(parts_.size(), "gang"));
        leave();
      }
    });
  }

  void leave() {
    is_leaving_ = true;
    notifier_.stopping();
    for (auto& [gang, part] : parts_) stop(part);
    finish_if_idle();
  }

  // Ends the program if it is leaving and the ends of all its gangs are reported. Before that it
  // waits a moment until the rendezvous has heard them, and readers have read each output's end.
  void finish_if_idle() {
    if (!is_leaving_) return;
    const bool runs =
        std::ranges::any_of(parts_, [](const auto& part) { return !part.second.held.ended; });
    if (runs) return;
    if ((parts_.empty() && unread_.empty()) || !is_connected_) return io_.stop();
    run_after(end_timer_, kLastWordsLimit, [this] { io_.stop(); });
  }

  // Constant after construction.
  const StandingOptions options_;
  const Environment environment_;
  const std::string instance_, program_, user_;

  asio::io_context io_;
  rendezvous::SystemdNotifier notifier_;
  asio::signal_set signals_;
  asio::steady_timer end_timer_;
  std::map<std::string, Part> parts_;  // by gang, until they are forgotten
  std::set<std::string> unread_;       // gangs whose output somebody hasn't read to the end
  std::optional<GangOutput> output_;
  std::optional<gangs::NodeLink> link_;
  bool is_connected_ = false;
  bool is_leaving_ = false;
  SignalEcho echo_;
  int exit_status_ = 0;
  std::uint64_t num_welcomes_ = 0;
  GangCounts counts_;
  std::optional<agent::NodeMonitor> node_monitor_;  // never started: it reads when it is asked
  std::optional<MetricsServer> metrics_;  // nullopt, like the one above: no metrics are served
};

// Writes a line to stderr. If its reader stands still, lines are lost: the agent must not wait,
// since its jobs depend on it.
void say_line(LogLevel level, std::string_view message) {
  write_within(STDERR_FILENO,
               concat(journal_prefix(level), "ddprun-agent: ", one_line(message), "\n"),
               std::chrono::milliseconds(100));
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  set_log_sink(say_line);
  try {
    ServiceManager manager = ServiceManager::take_from_environment();
    Environment environment = current_environment();
    auto asked = parse_standing_command_line(argc, argv, environment);
    if (!asked.options) return asked.exit_status;
    set_log_level(asked.options->verbose ? LogLevel::kDebug : LogLevel::kInfo);
    return std::make_unique<StandingAgent>(*std::move(asked.options), std::move(environment),
                                           std::move(manager))
        ->run();
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    say_line(LogLevel::kError, ending.text);
    return static_cast<int>(ending.code);
  }
}
