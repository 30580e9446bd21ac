// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet_plan.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "agent/console.h"
#include "agent/watched_child.h"
#include "common/error.h"
#include "common/log.h"
#include "common/signal_names.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/unique_fd.h"
#include "launcher/failure_report.h"
#include "launcher/hosts/channel_end.h"
#include "launcher/hosts/own_lines.h"
#include "launcher/terminal_text.h"
#include "rendezvous/asio/signals.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/daemon/systemd_notifier.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kKeptWordsBytes = 4096;

std::vector<std::string> names_of(const FleetPlan& plan) {
  std::vector<std::string> names;
  for (const Host& node : plan.fleet.nodes) names.push_back(node.name);
  return names;
}

// Opens a pipe or terminal again, with flags of its own (agent/console.cc has the reason). A socket
// can't be opened again: the result is invalid.
UniqueFd open_anew(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

// Reads the launcher's standard input for the rank that has it, on any node. Reads no more than
// that node's agent has room for. io thread only.
class InputFeed {
 public:
  // Reads `fd`, and leaves it unchanged for other processes. Reads a terminal only while this
  // process is in its foreground. If the process starts in the background, there is no input.
  // `send` is called from the io context or within has_room(); empty bytes are the end of the
  // input.
  InputFeed(boost::asio::io_context& io, int fd, std::size_t num_nodes,
            std::function<void(int, std::string)> send)
      : original_fd_(fd), io_(io), input_(io), flow_(num_nodes), send_(std::move(send)) {
    open();
  }

  // As InputFlow::has_room(), then reads. If the input has ended, a node that gets the rank is sent
  // that end.
  void has_room(int node, const channel::Room& room) {
    flow_.has_room(node, room);
    if (!room.has_stdin_rank || !ended_) return pump();
    send_(node, {});
  }

  void gone(int node) { flow_.gone(node); }
  // Called when this process continues after a stop, maybe in the foreground again.
  void continued() { pump(); }

 private:
  void open() {
    struct stat info {};
    ended_ = ::fstat(original_fd_, &info) != 0;
    is_terminal_ = ::isatty(original_fd_) == 1;
    if (is_terminal_) {
      // If this process has just gone to the background, a read then fails, and doesn't stop it.
      ::signal(SIGTTIN, SIG_IGN);
      ended_ = is_in_background();
    } else if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) {
      return;  // a file: reads never wait
    }
    UniqueFd own = open_anew(original_fd_);
    may_block_ = !own;
    if (!own) own.reset(::fcntl(original_fd_, F_DUPFD_CLOEXEC, 0));
    if (!own) throw_system_error("standard input: fcntl(F_DUPFD_CLOEXEC)", errno);
    input_.assign(own.release());
  }

  bool is_in_background() const { return is_terminal_ && !is_in_foreground(original_fd_); }

  void pump() {
    if (busy_ || ended_ || flow_.room() == 0 || is_in_background()) return;  // until continued()
    const ssize_t size = take(std::min(flow_.room(), buffer_.size()));
    if (size > 0) {
      flow_.sent(static_cast<std::size_t>(size));
      send_(flow_.node(), std::string(buffer_.data(), static_cast<std::size_t>(size)));
      busy_ = true;  // other handlers run first
      return boost::asio::post(io_, [this] {
        busy_ = false;
        pump();
      });
    }
    if (size < 0 && errno == EINTR) return pump();
    if (size < 0 && errno == EAGAIN) {
      busy_ = true;
      return input_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                               [this](const boost::system::error_code& error) {
                                 busy_ = false;
                                 if (!error) pump();
                               });
    }
    if (size < 0 && errno == EIO && is_in_background()) return;  // it has just gone there
    if (size < 0) log_warning("standard input: ", errno_text(errno), "; no rank gets more of it");
    ended_ = true;
    boost::system::error_code ignored;
    input_.close(ignored);
    send_(flow_.node(), {});
  }

  // Returns −1 with EAGAIN if there is nothing yet.
  ssize_t take(std::size_t most_bytes) {
    const int fd = input_.is_open() ? input_.native_handle() : original_fd_;
    if (may_block_) {
      const ssize_t size = ::recv(fd, buffer_.data(), most_bytes, MSG_DONTWAIT);
      if (size >= 0 || errno != ENOTSOCK) return size;
      if (!is_ready(fd, POLLIN)) {
        errno = EAGAIN;
        return -1;
      }
    }
    return ::read(fd, buffer_.data(), most_bytes);
  }

  const int original_fd_;
  bool is_terminal_ = false;
  bool may_block_ = false;  // its flags are shared: a read may block, so reads only what is there
  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor input_;  // not open: it is a file, or has ended
  InputFlow flow_;
  const std::function<void(int, std::string)> send_;
  std::array<char, channel::kMostOutputBytes> buffer_;
  bool busy_ = false;   // a wait or the next pump() is pending
  bool ended_ = false;  // all is read
};

// Starts a job's agents on several hosts (ssh), passes signals to them and their output to the
// console, and ends with the job's one result.
class HostsJob : private FleetActions {
 public:
  // `environment` is for the ssh processes.
  HostsJob(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
           ServiceManager manager)
      : plan_(std::move(plan)),
        environment_(to_strings(environment)),
        keep_alive_(config.hosts.keep_alive),
        warnings_(config.preemption.signals),
        io_(1),
        notifier_(io_, std::move(manager)),
        signals_(io_),
        halts_(io_),
        timer_(io_),
        console_(io_,
                 {.slow_reader = config.output.slow_reader,
                  .notice = [this](const std::string& text) { say(LogLevel::kWarning, text); }}),
        own_lines_(names_of(plan_)),
        fleet_(plan_.fleet, *this),
        input_(io_, STDIN_FILENO, plan_.fleet.nodes.size(), [this](int node, std::string bytes) {
          nodes_[node].channel->send(channel::Input{std::move(bytes)});
        }) {
    for (std::size_t i = 0; i < plan_.fleet.nodes.size(); ++i) nodes_.emplace_back(io_);
    redraw_of(0);
    for (const int number : config.signals_to_handle.numbers) {
      const bool nohup = number == SIGHUP && is_ignored(SIGHUP);
      if (!nohup) signals_.add(number);
    }
    for (const int number : warnings_) signals_.add(number);
    if (!is_ignored(SIGTSTP)) halts_.add(SIGTSTP);
    halts_.add(SIGCONT);
  }

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run() {
    wait_for_signal();
    wait_for_halt();
    fleet_.tick(Clock::now());
    notifier_.ready([this] { return concat("a job on ", nodes_.size(), " hosts"); });
    io_.run();
    signals_.clear();
    halts_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i) end_lines(static_cast<int>(i));
    for (const std::string& loss : console_.losses()) say(LogLevel::kWarning, loss);
    const auto patience = signalled_ ? kSignalledReaderPatience : kReaderPatience;
    if (const std::size_t dropped = console_.finish(Deadline::after(patience)); dropped > 0) {
      log_warning("the last ", dropped,
                  " bytes of the output were not taken by their reader within ",
                  patience.count() / 1000, " s: dropped");
    }
    write_to_stderr(last_words_);
    return exit_code_;
  }

 private:
  struct Node {
    explicit Node(boost::asio::io_context& io) : words(io) {}
    std::shared_ptr<agent::WatchedChild> process;  // ssh, or the agent itself
    std::unique_ptr<ChannelEnd> channel;           // over its stdin and stdout; null: not started
    boost::asio::posix::stream_descriptor words;   // its stderr
    std::string said;                              // the last text from it
    std::optional<int> wait_status;                // set when the process has ended
    agent::LineSource out, err;
  };

  void wait_for_signal() {
    on_each_signal(signals_, [this](int number) {
      const bool warns = std::find(warnings_.begin(), warnings_.end(), number) != warnings_.end();
      signalled_ = signalled_ || !warns;
      fleet_.signalled(number, warns, Clock::now());
    });
  }

  void wait_for_halt() {
    on_each_signal(halts_, [this](int number) {
      if (number == SIGTSTP) stand_still();
      input_.continued();
    });
  }

  // Called at Ctrl-Z. Tells the agents, which would take the silence for a lost connection.
  void stand_still() {
    for (const Node& node : nodes_) {
      const bool has_pulse = node.channel && node.channel->patience().count() > 0;
      if (has_pulse) node.channel->send(channel::Pulse{});
    }
    halts_.remove(SIGTSTP);
    ::raise(SIGTSTP);  // the default action; it does nothing if no shell could continue us
    halts_.add(SIGTSTP);
  }

  void wake_at(std::optional<Clock::time_point> time) override {
    run_at(timer_, time.value_or(Clock::time_point::max()), [this] { fleet_.tick(Clock::now()); });
  }

  void start(int index) override {
    nodes_[index].channel = std::make_unique<ChannelEnd>(
        io_, channel::From::kAgent,
        ChannelEnd::Handlers{
            .heard = [this, index](const channel::Message& message) { heard(index, message); },
            .lost =
                [this, index](const std::string& fault) {
                  if (!fault.empty()) lose(index, fault);  // else the process' end tells why
                }});
    try {
      start_process(index);
    } catch (const Error& error) {
      // Posted, since the fleet is in the middle of a step.
      boost::asio::post(io_, [this, index, why = std::string(error.what())] {
        fleet_.gone(index, static_cast<int>(ExitCode::kUsage), why, Clock::now());
      });
    }
  }

  void start_process(int index) {
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

  void run(int node, const std::string& place, bool serves) override {
    nodes_[node].channel->send(job_at(plan_, node, place, serves));
  }

  void signal(int node, int number) override {
    nodes_[node].channel->send(channel::Signal{number});
  }

  void close(int node) override {
    input_.gone(node);
    kill(nodes_[node]);
    end_lines(node);
  }

  void say(LogLevel level, const std::string& text) override {
    own_.urgent = true;
    console_.lines(agent::OutputStream::kStderr).feed(own_, own_line(level, text), Clock::now());
    console_.flush(agent::OutputStream::kStderr);
  }

  void finish(int exit_code, const std::string& reason, const std::string& last_words) override {
    for (Node& node : nodes_) kill(node);  // processes that still hold a channel
    exit_code_ = exit_code;
    last_words_ = last_words;
    membership::JobEnd verdict;
    verdict.exit_code = exit_code;
    verdict.reason = reason;
    if (!reason.empty()) last_words_ = failure_report(verdict, {.program = {}, .local = true});
    if (exit_code != 0) {
      if (reason.empty()) verdict.reason = one_line(last_words);
      const std::string problem = leave_error_file(from_strings(environment_), verdict);
      if (!problem.empty()) say(LogLevel::kWarning, problem);
    }
    io_.stop();
  }

  void heard(int index, const channel::Message& message) {
    if (const auto* output = variants::get_if<channel::Output>(&message)) {
      show(index, *output);
    } else if (const auto* hello = variants::get_if<channel::Hello>(&message)) {
      // The pulse is sent before the job, even if that must wait. Without it the agent expects
      // none, and a lost connection would leave its workers running.
      nodes_[index].channel->keep_alive(keep_alive_);
      fleet_.hello(index, *hello, Clock::now());
    } else if (const auto* serving = variants::get_if<channel::Serving>(&message)) {
      fleet_.serving(index, serving->endpoint, Clock::now());
    } else if (const auto* room = variants::get_if<channel::Room>(&message)) {
      if (room->has_stdin_rank) redraw_of(index);
      input_.has_room(index, *room);
    } else if (const auto* end = variants::get_if<channel::End>(&message)) {
      nodes_[index].channel->keep_alive(std::chrono::milliseconds{0});
      input_.gone(index);
      end_lines(index);
      fleet_.ended(index, *end, Clock::now());
    }
  }

  // Shows the unfinished lines of this node alone: it has the rank with stdin, so they are prompts.
  void redraw_of(int index) {
    for (Node& node : nodes_) node.out.redraws = node.err.redraws = false;
    nodes_[index].out.redraws = nodes_[index].err.redraws = true;
  }

  // If the console's reader is slow, reads no more from this node, so that the node waits, too.
  void show(int index, const channel::Output& output) {
    Node& node = nodes_[index];
    const auto stream =
        output.is_stderr ? agent::OutputStream::kStderr : agent::OutputStream::kStdout;
    agent::LineSource& source = output.is_stderr ? node.err : node.out;
    console_.lines(stream).feed(
        source, output.is_stderr ? own_lines_.pass(index, output.bytes) : output.bytes,
        Clock::now());
    console_.flush(stream);
    if (!console_.must_wait(stream, source)) return;
    node.channel->pause();
    console_.when_room(stream, [this, index] { resume(index); });
  }

  void resume(int index) {
    Node& node = nodes_[index];
    if (!node.channel->is_open() || !node.channel->is_paused()) return;
    node.channel->resume();
    if (node.wait_status) drain(index);
  }

  // Called when the process has ended: reads what is left in the pipe, which ssh's multiplexing may
  // keep open.
  void drain(int index) {
    ChannelEnd& channel = *nodes_[index].channel;
    channel.drain();
    if (!channel.is_paused()) lose(index, "");
  }

  void await_words(Node& node) {
    when_readable(node.words, [this, &node] {
      if (take_words(node)) await_words(node);
    });
  }

  // Returns false at the end of its stderr.
  bool take_words(Node& node) {
    boost::system::error_code error;
    while (!error) {
      const std::size_t size = node.words.read_some(boost::asio::buffer(words_buffer_), error);
      node.said.append(words_buffer_.data(), size);
      if (node.said.size() > kKeptWordsBytes)
        node.said.erase(0, node.said.size() - kKeptWordsBytes);
    }
    return error == boost::asio::error::would_block;
  }

  // Ends a node that can't be heard any more. `fault`: what the agent did wrong; empty: its process
  // has ended.
  void lose(int index, const std::string& fault) {
    Node& node = nodes_[index];
    if (!node.channel->is_open()) return;
    take_words(node);
    if (node.said.empty()) node.said = node.channel->prologue();
    kill(node);
    input_.gone(index);
    CommandFailure failure{ExitCode::kRetryable, fault};
    if (fault.empty()) {
      failure =
          command_failure(*node.wait_status, node.said,
                          plan_.fleet.nodes[index].is_here ? plan_.commands[index] : plan_.ssh,
                          plan_.remote_program);
    }
    fleet_.gone(index, static_cast<int>(failure.code), failure.text, Clock::now());
  }

  // Ends the channel's process, which the agent notices.
  void kill(Node& node) {
    if (!node.channel) return;
    node.channel->close();
    boost::system::error_code ignored;
    node.words.close(ignored);
    if (node.process) node.process->signal(SIGKILL);
  }

  void end_lines(int index) {
    Node& node = nodes_[index];
    agent::LineMux& lines = console_.lines(agent::OutputStream::kStderr);
    const auto now = Clock::now();
    lines.feed(node.err, own_lines_.end(index), now);
    lines.end(node.err, now);
    console_.lines(agent::OutputStream::kStdout).end(node.out, now);
    console_.flush(agent::OutputStream::kStderr);
    console_.flush(agent::OutputStream::kStdout);
  }

  // Constant after construction.
  const FleetPlan plan_;
  const std::vector<std::string> environment_;
  const std::chrono::milliseconds keep_alive_;
  const std::vector<int> warnings_;  // signals that warn of preemption

  boost::asio::io_context io_;
  rendezvous::SystemdNotifier notifier_;
  boost::asio::signal_set signals_;
  boost::asio::signal_set halts_;  // SIGTSTP, SIGCONT
  boost::asio::steady_timer timer_;
  agent::Console console_;
  agent::LineSource own_;
  OwnLines own_lines_;
  Fleet fleet_;
  std::deque<Node> nodes_;
  std::array<char, 4096> words_buffer_;
  InputFeed input_;
  bool signalled_ = false;
  int exit_code_ = 0;
  std::string last_words_;
};

}  // namespace

int run_on_hosts(FleetPlan plan, const Environment& environment, const LaunchConfig& config,
                 ServiceManager manager) {
  return std::make_unique<HostsJob>(std::move(plan), environment, config, std::move(manager))
      ->run();
}

}  // namespace ddprun::launcher
