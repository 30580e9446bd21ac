// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/hosts_job.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "launcher/failure_report.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

std::vector<std::string> names_of(const FleetPlan& plan) {
  std::vector<std::string> names;
  for (const FleetNode& node : plan.fleet.nodes) names.push_back(node.name);
  return names;
}

}  // namespace

HostsJob::HostsJob(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
                   ServiceManager manager)
    : plan_(std::move(plan)),
      environment_(to_strings(environment)),
      warnings_(config.preemption.signals),
      io_(1),
      service_(io_, std::move(manager)),
      signals_(io_),
      halts_(io_),
      timer_(io_),
      console_(io_, console_options(config.output.slow_reader)),
      own_lines_(names_of(plan_)),
      fleet_(plan_.fleet),
      nodes_(plan_.fleet.nodes.size()),
      input_(io_, STDIN_FILENO, nodes_.size(), [this](int node, std::string bytes) {
        if (const auto& channel = nodes_[node].channel) {
          channel->send(channel::Input{std::move(bytes)});
        }
      }) {
  for (const int number : config.signals_to_handle.numbers) {
    const bool nohup = number == SIGHUP && is_ignored(SIGHUP);
    if (!nohup) signals_.add(number);
  }
  for (const int number : warnings_) signals_.add(number);
  if (!is_ignored(SIGTSTP)) halts_.add(SIGTSTP);
  halts_.add(SIGCONT);
}

HostsJob::~HostsJob() = default;

int HostsJob::run() {
  wait_for_signal();
  wait_for_halt();
  happened(fleet_event::Begin{});
  service_.ready([this] { return concat("a job on ", nodes_.size(), " hosts"); });
  io_.run();
  input_.stop();
  signals_.clear();
  halts_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) end_lines(static_cast<int>(i));
  for (const std::string& loss : console_.losses()) tell(LogLevel::kWarning, loss);
  const auto patience = signalled_ ? kSignalledReaderPatience : kReaderPatience;
  if (const std::size_t dropped = console_.finish(Deadline::after(patience)); dropped > 0) {
    log_warning("the last ", dropped, " bytes of the output were not taken by their reader within ",
                patience.count() / 1000, " s: dropped");
  }
  write_to_stderr(last_words_);
  return exit_code_;
}

void HostsJob::wait_for_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int number) {
    if (error) return;
    wait_for_signal();
    const bool warns = std::find(warnings_.begin(), warnings_.end(), number) != warnings_.end();
    signalled_ = signalled_ || !warns;
    happened(fleet_event::Signalled{number, warns});
  });
}

void HostsJob::wait_for_halt() {
  halts_.async_wait([this](const boost::system::error_code& error, int number) {
    if (error) return;
    if (number == SIGTSTP) stand_still();
    input_.continued();
    wait_for_halt();
  });
}

// Ctrl-Z: the agents are told, for they would take the silence for a cut line.
void HostsJob::stand_still() {
  for (const Node& node : nodes_) {
    if (node.channel) node.channel->stand_still();
  }
  halts_.remove(SIGTSTP);
  ::raise(SIGTSTP);  // by its default action; nothing where no shell could continue us
  halts_.add(SIGTSTP);
}

// What is done may itself be an event at once (a command that can't be started): in its turn.
void HostsJob::happened(const FleetEvent& event) {
  events_.push_back(event);
  if (stepping_) return;
  stepping_ = true;
  while (!events_.empty()) {
    const FleetEvent next = std::move(events_.front());
    events_.erase(events_.begin());
    for (const FleetAction& action : fleet_.step(next, Clock::now())) {
      variants::visit([this](const auto& one) { perform(one); }, action);
    }
  }
  stepping_ = false;
  set_timer();
}

void HostsJob::set_timer() {
  const auto at = fleet_.next_deadline();
  if (!at) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(*at);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) happened(fleet_event::Tick{});
  });
}

void HostsJob::perform(const fleet_action::Start& action) {
  const int node = action.node;
  NodeChannelEvents events;
  events.heard = [this, node](channel::FromAgent message) {
    return heard(node, std::move(message));
  };
  events.gone = [this, node](const NodeChannelEvents::Gone& how) { gone(node, how); };
  try {
    nodes_[node].channel = NodeChannel::start(io_, plan_.commands[node], environment_,
                                              plan_.keep_alive, std::move(events));
  } catch (const Error& error) {
    happened(fleet_event::Gone{node, static_cast<int>(ExitCode::kUsage), error.what()});
  }
}

void HostsJob::perform(const fleet_action::Run& action) {
  const bool serves = !action.serve_at.empty();
  nodes_[action.node].channel->send(
      job_at(plan_, action.node, serves ? action.serve_at : action.endpoint, serves));
}

void HostsJob::perform(const fleet_action::Signal& action) {
  if (const auto& channel = nodes_[action.node].channel) {
    channel->send(channel::Signal{action.number});
  }
}

void HostsJob::perform(const fleet_action::Close& action) {
  input_.gone(action.node);
  if (const auto channel = std::exchange(nodes_[action.node].channel, nullptr)) channel->close();
  end_lines(action.node);
}

void HostsJob::perform(const fleet_action::Say& action) { tell(action.level, action.text); }

void HostsJob::tell(LogLevel level, const std::string& text) {
  own_.urgent = true;
  console_.lines(agent::OutputStream::kStderr).feed(own_, own_line(level, text), Clock::now());
  console_.flush(agent::OutputStream::kStderr);
}

agent::ConsoleOptions HostsJob::console_options(agent::SlowReader slow_reader) {
  agent::ConsoleOptions options;
  options.slow_reader = slow_reader;
  options.notice = [this](const std::string& text) { tell(LogLevel::kWarning, text); };
  return options;
}

void HostsJob::perform(const fleet_action::Finish& action) {
  for (Node& node : nodes_) {  // what still holds one
    if (const auto channel = std::exchange(node.channel, nullptr)) channel->close();
  }
  exit_code_ = action.exit_code;
  last_words_ = action.last_words;
  if (!action.reason.empty()) {
    membership::JobEnd verdict;
    verdict.exit_code = action.exit_code;
    verdict.reason = action.reason;
    last_words_ = failure_report(verdict, {.program = {}, .local = true});
  }
  io_.stop();
}

bool HostsJob::heard(int node, channel::FromAgent message) {
  if (const auto* output = variants::get_if<channel::Output>(&message)) return show(node, *output);
  if (auto* hello = variants::get_if<channel::Hello>(&message)) {
    happened(fleet_event::Hello{node, std::move(*hello)});
  } else if (auto* serving = variants::get_if<channel::Serving>(&message)) {
    happened(fleet_event::Serving{node, std::move(serving->endpoint)});
  } else if (const auto* room = variants::get_if<channel::Room>(&message)) {
    input_.has_room(node, *room);
  } else if (auto* end = variants::get_if<channel::End>(&message)) {
    input_.gone(node);
    end_lines(node);
    happened(fleet_event::End{node, std::move(*end)});
  }
  return true;
}

// False while the console's reader is behind: then this node waits, and it makes its own wait.
bool HostsJob::show(int index, const channel::Output& output) {
  Node& node = nodes_[index];
  const auto stream =
      output.is_stderr ? agent::OutputStream::kStderr : agent::OutputStream::kStdout;
  agent::LineMux& lines = console_.lines(stream);
  if (output.is_stderr) {
    lines.feed(node.err, own_lines_.pass(index, output.bytes), Clock::now());
  } else {
    lines.feed(node.out, output.bytes, Clock::now());
  }
  console_.flush(stream);
  if (!console_.must_wait(stream, output.is_stderr ? node.err : node.out)) return true;
  console_.when_room(stream, [channel = node.channel] {
    if (channel) channel->resume();
  });
  return false;
}

void HostsJob::end_lines(int index) {
  Node& node = nodes_[index];
  agent::LineMux& lines = console_.lines(agent::OutputStream::kStderr);
  const auto now = Clock::now();
  lines.feed(node.err, own_lines_.end(index), now);
  lines.end(node.err, now);
  console_.lines(agent::OutputStream::kStdout).end(node.out, now);
  console_.flush(agent::OutputStream::kStderr);
  console_.flush(agent::OutputStream::kStdout);
}

void HostsJob::gone(int node, const NodeChannelEvents::Gone& how) {
  input_.gone(node);
  nodes_[node].channel.reset();
  fleet_event::Gone event{node, static_cast<int>(ExitCode::kRetryable), how.fault};
  if (how.fault.empty()) {
    const CommandFailure failure = command_failure(
        how.wait_status, how.said,
        plan_.fleet.nodes[node].is_here ? plan_.commands[node] : plan_.ssh, plan_.remote_program);
    event.code = static_cast<int>(failure.code);
    event.text = failure.text;
  }
  happened(event);
}

}  // namespace ddprun::launcher
