// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "agent/watched_child.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "launcher/hosts/channel_end.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

using ErrorResult = boost::system::error_code;

// With more bytes pending, ddprun's output isn't read: the launcher's reader is slow.
constexpr std::size_t kMostPendingBytes = std::size_t{1} << 18;
constexpr std::chrono::seconds kDrainPatience{2};

UniqueFd own_copy(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Returns the variable NAME=VALUE for a child of this process.
std::string under_channel_variable(const UnderChannel& child) {
  return concat(env::kUnderChannel, "=", child.serves, " ", child.stop_signal, " ", ::getpid());
}

// One node's agent: gets its job from the channel, runs ddprun as a child, and passes on its
// output. When the channel ends, it and ddprun end. io thread only.
class ChannelAgent {
 public:
  // `environment` is this process'.
  explicit ChannelAgent(Environment environment)
      : environment_(std::move(environment)),
        io_(1),
        signals_(io_, SIGTERM, SIGINT, SIGHUP),
        patience_(io_),
        channel_(io_, channel::From::kLauncher,
                 {.heard = [this](const channel::Message& message) { obey(message); },
                  .lost =
                      [this](const std::string& fault) {
                        // Its stream has ended, but it still reads the last of ours.
                        const bool takes_end = end_said_ && channel_.pending() > 0;
                        if (!fault.empty() || !takes_end) lose_channel(fault);
                      },
                  .written =
                      [this] {
                        if (end_said_ && channel_.pending() == 0) io_.stop();
                        read_all();
                      }}),
        stdin_(io_, [this](std::size_t num_bytes) { input_has_left(num_bytes); }),
        stdout_(io_),
        stderr_(io_),
        words_(io_, channel::From::kDdprun,
               {.heard = [this](const channel::Message& message) { hear_child(message); },
                .lost =
                    [this](const std::string&) {
                      words_.close();
                      say_end_when_read();
                    }}) {}

  // Runs until ddprun's end has been reported, or the channel has ended. Returns the exit status.
  int run() {
    signals_.async_wait([this](const ErrorResult& error, int) {
      if (!error) lose_channel("");
    });
    channel_.open(own_copy(STDIN_FILENO), own_copy(STDOUT_FILENO));
    // The variable has the addresses of the ssh connection that started this process.
    std::istringstream connection(find_variable(environment_, env::kSshConnection).value_or(""));
    std::string client, port, server;
    connection >> client >> port >> server;
    channel_.send(channel::Hello{channel::kProtocol, DDPRUN_VERSION, host_name(), server, client});
    io_.run();
    return end_.exit_code;
  }

 private:
  struct Stream {  // of ddprun
    explicit Stream(boost::asio::io_context& io) : pipe(io) {}
    boost::asio::posix::stream_descriptor pipe;
    bool reading = false;
    std::array<char, channel::kMostOutputBytes> buffer;
  };

  void obey(const channel::Message& message) {
    if (end_said_) return;
    if (const auto* job = variants::get_if<channel::Job>(&message)) {
      if (!child_ && !child_ended_) start(*job);
    } else if (const auto* signal = variants::get_if<channel::Signal>(&message)) {
      if (child_) child_->signal(signal->number);
    } else if (const auto* input = variants::get_if<channel::Input>(&message)) {
      take_input(input->bytes);
    }
  }

  void start(const channel::Job& job) {
    stop_time_ = job.stop_time;
    if (::chdir(job.directory.c_str()) != 0) {
      return refuse("no working directory " + job.directory + " there: " + errno_text(errno));
    }
    try {
      start_child(job);
    } catch (const Error& error) {
      close_streams();
      return refuse(error.what());
    }
    read_all();
  }

  void start_child(const channel::Job& job) {
    Pipe in = make_pipe();
    Pipe out = make_pipe();
    Pipe err = make_pipe();
    auto [words, its_words] = make_socket_pair(SOCK_STREAM);
    ChildCommand command;
    command.argv = {own_folder() + "/ddprun"};
    if (!job.serve_at.empty()) {
      const Endpoint place{.host = job.serve_at, .port = kDefaultRendezvousPort};
      command.argv.push_back("--rdzv-endpoint=" + to_string(place));
    }
    command.argv.insert(command.argv.end(), job.arguments.begin(), job.arguments.end());
    Environment environment = from_strings(job.environment);
    environment.insert(environment_.begin(), environment_.end());
    command.environment = to_strings(environment);
    command.environment.push_back(
        under_channel_variable({.serves = !job.serve_at.empty(), .stop_signal = job.stop_signal}));
    command.descriptors = {in.read_end.get(), out.write_end.get(), err.write_end.get(),
                           its_words.get()};
    stdout_.pipe.assign(out.read_end.release());
    stderr_.pipe.assign(err.read_end.release());
    words_.open(std::move(words), UniqueFd());
    stdin_.open(std::move(in.write_end));
    child_ = agent::WatchedChild::start(io_, command,
                                        [this](int wait_status) { on_child_end(wait_status); });
  }

  void refuse(const std::string& why) {
    channel_.send(channel::Output{true, "ddprun: " + one_line(why) + "\n"});
    end_.exit_code = static_cast<int>(ExitCode::kUsage);
    child_ended_ = true;
    say_end_when_read();
  }

  // Empty bytes are the end of the input. After it, or if nobody reads any more, nothing happens.
  void take_input(std::string_view bytes) {
    if (!stdin_.is_open() || input_ended_) return;
    if (stdin_.pending() + bytes.size() > channel::kMostInputBytes) {
      throw Error(ErrorCode::kProtocol, "more input than there is room for");
    }
    input_ended_ = bytes.empty();
    stdin_.write(bytes);
    if (input_ended_ && stdin_.pending() == 0) stdin_.close();
  }

  void input_has_left(std::size_t num_bytes) {
    if (num_bytes > 0) channel_.send(channel::Room{num_bytes, false});
    if (input_ended_ && stdin_.pending() == 0) stdin_.close();
  }

  void read_all() {
    for (Stream* stream : {&stdout_, &stderr_}) read(*stream);
  }

  void read(Stream& stream) {
    if (stream.reading || !stream.pipe.is_open() || is_behind()) return;
    stream.reading = true;
    stream.pipe.async_read_some(
        boost::asio::buffer(stream.buffer),
        [this, &stream](const ErrorResult& error, std::size_t num_bytes) {
          stream.reading = false;
          if (error) {
            ErrorResult ignored;
            stream.pipe.close(ignored);
            return say_end_when_read();
          }
          channel_.send(
              channel::Output{&stream == &stderr_, std::string(stream.buffer.data(), num_bytes)});
          read(stream);
        });
  }

  void hear_child(const channel::Message& message) {
    if (const auto* end = variants::get_if<channel::End>(&message)) {
      end_.by_job = end->by_job;
      end_.last_words = end->last_words;
    } else if (variants::holds_alternative<channel::Room>(message)) {
      channel_.send(channel::Room{std::exchange(room_, 0), true});
    } else if (variants::holds_alternative<channel::Serving>(message)) {
      channel_.send(message);
    }
  }

  void on_child_end(int wait_status) {
    child_.reset();
    child_ended_ = true;
    stdin_.close();
    end_.was_killed = WIFSIGNALED(wait_status);
    end_.exit_code =
        end_.was_killed ? exit_status_for_signal(WTERMSIG(wait_status)) : WEXITSTATUS(wait_status);
    if (channel_lost_) return io_.stop();
    await_output();
    say_end_when_read();
  }

  // A process that ddprun could not end may hold a pipe open, so the wait is bounded. A slow
  // launcher is waited for.
  void await_output() {
    patience_.expires_after(kDrainPatience);
    patience_.async_wait([this](const ErrorResult& error) {
      if (error) return;
      if (is_behind()) return await_output();
      close_streams();
      say_end_when_read();
    });
  }

  void close_streams() {
    ErrorResult ignored;
    for (Stream* stream : {&stdout_, &stderr_}) stream->pipe.close(ignored);
    words_.close();
  }

  bool is_behind() const { return !channel_lost_ && channel_.pending() > kMostPendingBytes; }

  void say_end_when_read() {
    const bool all_read = !stdout_.pipe.is_open() && !stderr_.pipe.is_open() && !words_.is_open();
    if (!child_ended_ || !all_read || end_said_) return;
    patience_.cancel();
    end_said_ = true;
    channel_.send(end_);
  }

  // Called when the channel ends, or this agent gets a signal: this node leaves the job.
  void lose_channel(const std::string& fault) {
    if (channel_lost_) return;
    if (!fault.empty()) log_error("the launcher: ", fault, ": ending this node's part");
    channel_lost_ = true;
    channel_.close();
    stdin_.close();
    if (!child_) return io_.stop();
    words_.close();
    patience_.expires_after(stop_time_);
    patience_.async_wait([this](const ErrorResult& error) {
      if (!error && child_) child_->signal(SIGKILL);  // its warden ends the workers
    });
    read_all();
  }

  const Environment environment_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  ChannelEnd channel_;
  bool channel_lost_ = false;

  std::shared_ptr<agent::WatchedChild> child_;  // null: none yet, or it has ended
  PipeWriter stdin_;
  Stream stdout_;
  Stream stderr_;
  ChannelEnd words_;                             // its messages; it leaves the job when this closes
  std::size_t room_ = channel::kMostInputBytes;  // not yet announced
  bool input_ended_ = false;
  std::chrono::seconds stop_time_{0};
  bool child_ended_ = false;
  bool end_said_ = false;
  channel::End end_;
};

}  // namespace

int run_channel_agent(Environment environment) {
  return std::make_unique<ChannelAgent>(std::move(environment))->run();
}

std::optional<UnderChannel> under_channel(Environment& environment) {
  std::istringstream variable(find_variable(environment, env::kUnderChannel).value_or(""));
  environment.erase(env::kUnderChannel);
  UnderChannel result;
  pid_t parent = 0;
  if (!(variable >> result.serves >> result.stop_signal >> parent)) return std::nullopt;
  // The variable is from a ddprun higher up, whose child isn't this process.
  if (parent != ::getppid()) return std::nullopt;
  if (::fcntl(UnderChannel::kFd, F_SETFD, FD_CLOEXEC) != 0) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, result.stop_signal);
  if (::getppid() != parent) ::raise(result.stop_signal);  // the agent ended before prctl()
  return result;
}

void UnderChannel::watch() { ::prctl(PR_SET_PDEATHSIG, 0); }

void UnderChannel::say(const channel::Message& message) {
  write_within(kFd, channel::encode(message), kLastLinesPatience);
}

}  // namespace ddprun::launcher
