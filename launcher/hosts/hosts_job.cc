// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/hosts_job.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
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

constexpr std::size_t kKeptWordsBytes = 4096;

std::vector<std::string> names_of(const FleetPlan& plan) {
  std::vector<std::string> names;
  for (const Host& node : plan.fleet.nodes) names.push_back(node.name);
  return names;
}

}  // namespace

HostsJob::HostsJob(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
                   ServiceManager manager)
    : plan_(std::move(plan)),
      environment_(to_strings(environment)),
      keep_alive_(config.hosts.keep_alive),
      warnings_(config.preemption.signals),
      io_(1),
      service_(io_, std::move(manager)),
      signals_(io_),
      halts_(io_),
      timer_(io_),
      console_(io_, {.slow_reader = config.output.slow_reader,
                     .notice = [this](const std::string& text) { say(LogLevel::kWarning, text); }}),
      own_lines_(names_of(plan_)),
      fleet_(plan_.fleet, *this),
      input_(io_, STDIN_FILENO, plan_.fleet.nodes.size(), [this](int node, std::string bytes) {
        nodes_[node].channel->send(channel::Input{std::move(bytes)});
      }) {
  for (std::size_t i = 0; i < plan_.fleet.nodes.size(); ++i) nodes_.emplace_back(io_);
  for (const int number : config.signals_to_handle.numbers) {
    const bool nohup = number == SIGHUP && is_ignored(SIGHUP);
    if (!nohup) signals_.add(number);
  }
  for (const int number : warnings_) signals_.add(number);
  if (!is_ignored(SIGTSTP)) halts_.add(SIGTSTP);
  halts_.add(SIGCONT);
}

int HostsJob::run() {
  wait_for_signal();
  wait_for_halt();
  fleet_.tick(Clock::now());
  service_.ready([this] { return concat("a job on ", nodes_.size(), " hosts"); });
  io_.run();
  signals_.clear();
  halts_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) end_lines(static_cast<int>(i));
  for (const std::string& loss : console_.losses()) say(LogLevel::kWarning, loss);
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
    fleet_.signalled(number, warns, Clock::now());
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
    const bool has_pulse = node.channel && node.channel->patience().count() > 0;
    if (has_pulse) node.channel->send(channel::Pulse{});
  }
  halts_.remove(SIGTSTP);
  ::raise(SIGTSTP);  // by its default action; nothing where no shell could continue us
  halts_.add(SIGTSTP);
}

void HostsJob::wake_at(std::optional<Clock::time_point> time) {
  timer_.expires_at(time.value_or(Clock::time_point::max()));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) fleet_.tick(Clock::now());
  });
}

void HostsJob::start(int index) {
  nodes_[index].channel = std::make_unique<ChannelEnd>(
      io_, channel::From::kAgent,
      ChannelEnd::Handlers{
          .heard = [this, index](const channel::Message& message) { heard(index, message); },
          .lost =
              [this, index](const std::string& fault) {
                if (!fault.empty()) lose(index, fault);  // else the process' own end says why
              }});
  try {
    start_process(index);
  } catch (const Error& error) {
    // In its turn: the fleet is in the midst of a step.
    boost::asio::post(io_, [this, index, why = std::string(error.what())] {
      fleet_.gone(index, static_cast<int>(ExitCode::kUsage), why, Clock::now());
    });
  }
}

void HostsJob::start_process(int index) {
  Node& node = nodes_[index];
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Pipe words = make_pipe();
  ChildCommand command;
  command.argv = plan_.commands[index];
  command.environment = environment_;
  command.descriptors = {in.read_end.get(), out.write_end.get(), words.write_end.get()};
  command.own_session = true;
  node.process = agent::WatchedChild::start(io_, command, [this, index](int wait_status) {
    nodes_[index].wait_status = wait_status;
    drain(index);
  });
  node.channel->open(std::move(out.read_end), std::move(in.write_end));
  node.words.assign(words.read_end.release());
  node.words.non_blocking(true);
  await_words(node);
}

void HostsJob::run(int node, const std::string& place, bool serves) {
  nodes_[node].channel->send(job_at(plan_, node, place, serves));
}

void HostsJob::signal(int node, int number) { nodes_[node].channel->send(channel::Signal{number}); }

void HostsJob::close(int node) {
  input_.gone(node);
  kill(nodes_[node]);
  end_lines(node);
}

void HostsJob::say(LogLevel level, const std::string& text) {
  own_.urgent = true;
  console_.lines(agent::OutputStream::kStderr).feed(own_, own_line(level, text), Clock::now());
  console_.flush(agent::OutputStream::kStderr);
}

void HostsJob::finish(int exit_code, const std::string& reason, const std::string& last_words) {
  for (Node& node : nodes_) kill(node);  // what still holds one
  exit_code_ = exit_code;
  last_words_ = last_words;
  if (!reason.empty()) {
    membership::JobEnd verdict;
    verdict.exit_code = exit_code;
    verdict.reason = reason;
    last_words_ = failure_report(verdict, {.program = {}, .local = true});
  }
  io_.stop();
}

void HostsJob::heard(int index, const channel::Message& message) {
  if (const auto* output = variants::get_if<channel::Output>(&message)) {
    show(index, *output);
  } else if (const auto* hello = variants::get_if<channel::Hello>(&message)) {
    // Before the job, even where that waits to be written: without it the agent expects no pulse,
    // and a line that is cut now would leave the workers there.
    nodes_[index].channel->keep_alive(keep_alive_);
    fleet_.hello(index, *hello, Clock::now());
  } else if (const auto* serving = variants::get_if<channel::Serving>(&message)) {
    fleet_.serving(index, serving->endpoint, Clock::now());
  } else if (const auto* room = variants::get_if<channel::Room>(&message)) {
    input_.has_room(index, *room);
  } else if (const auto* end = variants::get_if<channel::End>(&message)) {
    nodes_[index].channel->keep_alive(std::chrono::milliseconds{0});
    input_.gone(index);
    end_lines(index);
    fleet_.ended(index, *end, Clock::now());
  }
}

// While the console's reader is behind, this node waits, and makes its own wait.
void HostsJob::show(int index, const channel::Output& output) {
  Node& node = nodes_[index];
  const auto stream =
      output.is_stderr ? agent::OutputStream::kStderr : agent::OutputStream::kStdout;
  agent::LineSource& source = output.is_stderr ? node.err : node.out;
  console_.lines(stream).feed(
      source, output.is_stderr ? own_lines_.pass(index, output.bytes) : output.bytes, Clock::now());
  console_.flush(stream);
  if (!console_.must_wait(stream, source)) return;
  node.channel->pause();
  console_.when_room(stream, [this, index] { resume(index); });
}

void HostsJob::resume(int index) {
  Node& node = nodes_[index];
  if (!node.channel->is_open() || !node.channel->is_paused()) return;
  node.channel->resume();
  if (node.wait_status) drain(index);
}

// The process has ended: all that it wrote is in the pipe, though somebody else (ssh's own
// multiplexing) may hold that open.
void HostsJob::drain(int index) {
  ChannelEnd& channel = *nodes_[index].channel;
  channel.drain();
  if (!channel.is_paused()) lose(index, "");
}

void HostsJob::await_words(Node& node) {
  node.words.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this, &node](const boost::system::error_code& error) {
                          if (!error && take_words(node)) await_words(node);
                        });
}

// False: that was their end.
bool HostsJob::take_words(Node& node) {
  boost::system::error_code error;
  while (!error) {
    const std::size_t size = node.words.read_some(boost::asio::buffer(words_buffer_), error);
    node.said.append(words_buffer_.data(), size);
    if (node.said.size() > kKeptWordsBytes) node.said.erase(0, node.said.size() - kKeptWordsBytes);
  }
  return error == boost::asio::error::would_block;
}

// No more can be heard of it. `fault`: what the agent did wrong; empty: its process has ended.
void HostsJob::lose(int index, const std::string& fault) {
  Node& node = nodes_[index];
  if (!node.channel->is_open()) return;
  take_words(node);
  if (node.said.empty()) node.said = node.channel->prologue();
  kill(node);
  input_.gone(index);
  CommandFailure failure{ExitCode::kRetryable, fault};
  if (fault.empty()) {
    failure = command_failure(*node.wait_status, node.said,
                              plan_.fleet.nodes[index].is_here ? plan_.commands[index] : plan_.ssh,
                              plan_.remote_program);
  }
  fleet_.gone(index, static_cast<int>(failure.code), failure.text, Clock::now());
}

// By which the agent gets to know, too.
void HostsJob::kill(Node& node) {
  if (!node.channel) return;
  node.channel->close();
  boost::system::error_code ignored;
  node.words.close(ignored);
  if (node.process) node.process->signal(SIGKILL);
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

}  // namespace ddprun::launcher
