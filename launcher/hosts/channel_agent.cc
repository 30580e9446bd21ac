// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "launcher/endpoint_claim.h"
#include "launcher/hosts/under_channel.h"

namespace ddprun::launcher {
namespace {

using ErrorResult = boost::system::error_code;

// Above this ddprun's output waits: the launcher's reader is slow.
constexpr std::size_t kMostPendingBytes = std::size_t{1} << 18;
constexpr std::chrono::seconds kDrainPatience{2};
constexpr std::chrono::seconds kLookUpPatience{10};
constexpr int kWordsFd = 3;

// "CLIENT PORT SERVER PORT" of SSH_CONNECTION.
std::pair<std::string, std::string> ssh_addresses(const Environment& environment) {
  const auto text = find_variable(environment, env::kSshConnection);
  if (!text) return {};
  const std::size_t first = text->find(' ');
  const std::size_t second = first == std::string::npos ? first : text->find(' ', first + 1);
  const std::size_t third = second == std::string::npos ? second : text->find(' ', second + 1);
  if (third == std::string::npos) return {};
  return {text->substr(0, first), text->substr(second + 1, third - second - 1)};
}

std::vector<std::string> merged(Environment environment, const std::vector<std::string>& more) {
  for (const std::string& each : more) {
    const std::size_t equals = each.find('=');
    if (equals != std::string::npos) environment[each.substr(0, equals)] = each.substr(equals + 1);
  }
  return to_strings(environment);
}

}  // namespace

ChannelAgent::ChannelAgent(Environment environment)
    : environment_(std::move(environment)),
      io_(1),
      signals_(io_, SIGTERM, SIGINT, SIGHUP),
      patience_(io_),
      pulse_timer_(io_),
      commands_(io_, ::dup(STDIN_FILENO)),
      answers_(io_, ::dup(STDOUT_FILENO)),
      stdin_(io_,
             [this](std::size_t num_bytes) {
               say(channel::Room{num_bytes, false});
             }),
      stdout_(io_, 'o'),
      stderr_(io_, 'e'),
      words_(io_, 'w') {
  for (const int fd : {commands_.native_handle(), answers_.native_handle()}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

ChannelAgent::~ChannelAgent() = default;

int ChannelAgent::run() {
  commands_.non_blocking(true);
  answers_.non_blocking(true);
  signals_.async_wait([this](const ErrorResult& error, int) {
    if (!error) lose_channel();
  });
  const auto [client, server] = ssh_addresses(environment_);
  next_ = channel::kMagic;
  say(channel::Hello{channel::kProtocol, DDPRUN_VERSION, host_name(), server, client});
  read_commands();
  io_.run();
  return end_.exit_code;
}

void ChannelAgent::read_commands() {
  commands_.async_read_some(boost::asio::buffer(buffer_),
                            [this](const ErrorResult& error, std::size_t num_bytes) {
                              if (channel_lost_ || end_said_) return;
                              if (error) return lose_channel();
                              decoder_.feed({buffer_.data(), num_bytes});
                              heartbeat_.heard(Clock::now());
                              try {
                                while (auto message = decoder_.next_from_launcher()) {
                                  obey(*message);
                                }
                              } catch (const Error& broken) {
                                log_error("the launcher's message: ", broken.what());
                                return lose_channel();
                              }
                              read_commands();
                            });
}

void ChannelAgent::obey(const channel::FromLauncher& message) {
  if (const auto* job = variants::get_if<channel::Job>(&message)) {
    if (!has_job_) start(*job);
  } else if (const auto* signal = variants::get_if<channel::Signal>(&message)) {
    if (child_) child_->signal(signal->number);
  } else if (const auto* input = variants::get_if<channel::Input>(&message)) {
    stdin_.feed(input->bytes);
  } else if (const auto* pulse = variants::get_if<channel::Pulse>(&message)) {
    answer(*pulse);
  }
}

// Where output waits to be taken, the launcher is behind: it waits for no answer.
void ChannelAgent::answer(const channel::Pulse& pulse) {
  heartbeat_.expect(pulse.patience, Clock::now());
  await_pulse();
  if (outgoing_.empty()) say(pulse);
}

void ChannelAgent::await_pulse() {
  const auto at = heartbeat_.next();
  if (!at) return;
  pulse_timer_.expires_at(*at);
  pulse_timer_.async_wait([this](const ErrorResult& error) {
    if (error || channel_lost_ || end_said_) return;
    if (!heartbeat_.step(Clock::now()).silent) return await_pulse();
    log_error("nothing was heard of the launcher for ", heartbeat_.patience().count() / 1000.0,
              " s (--ssh-keep-alive): ending this node's part");
    lose_channel();
  });
}

void ChannelAgent::start(const channel::Job& job) {
  has_job_ = true;
  stop_seconds_ = job.stop_seconds;
  if (::chdir(job.directory.c_str()) != 0) {
    return refuse("no working directory " + job.directory + " there: " + errno_text(errno));
  }
  try {
    ChildCommand command;
    std::string endpoint;
    std::vector<UniqueFd> listeners;
    if (!job.serve_at.empty()) listeners = serve(job.serve_at, endpoint);
    command.argv = {own_folder() + "/ddprun"};
    if (!endpoint.empty()) command.argv.push_back("--rdzv-endpoint=" + endpoint);
    command.argv.insert(command.argv.end(), job.arguments.begin(), job.arguments.end());
    command.environment = merged(environment_, job.environment);
    command.environment.push_back(
        under_channel_variable(kWordsFd, static_cast<int>(listeners.size()), job.stop_signal));
    Pipe in = make_pipe();
    Pipe out = make_pipe();
    Pipe err = make_pipe();
    Pipe words = make_pipe();
    Pipe lifeline = make_pipe();
    command.descriptors = {in.read_end.get(), out.write_end.get(), err.write_end.get(),
                           words.write_end.get(), lifeline.read_end.get()};
    for (const UniqueFd& listener : listeners) command.descriptors.push_back(listener.get());
    stdout_.pipe.assign(out.read_end.release());
    stderr_.pipe.assign(err.read_end.release());
    words_.pipe.assign(words.read_end.release());
    stdin_.open(std::move(in.write_end));
    lifeline_ = std::move(lifeline.write_end);
    child_ = agent::WatchedChild::start(io_, command,
                                        [this](int wait_status) { on_child_end(wait_status); });
    if (!endpoint.empty()) say(channel::Serving{endpoint});
  } catch (const Error& error) {
    close_streams();
    return refuse(error.what());
  }
  read_all();
}

// The rendezvous' port is taken before it is told to anybody, and kept: the child inherits it.
std::vector<UniqueFd> ChannelAgent::serve(const std::string& host, std::string& endpoint) {
  RendezvousPlan plan;
  plan.mode = RendezvousMode::kElastic;
  plan.endpoint = {.host = host, .port = 0};
  plan.is_host = true;
  EndpointClaim claim = claim_endpoint(plan, 1, Deadline::after(kLookUpPatience));
  endpoint = to_string(Endpoint{.host = host, .port = claim.connect_to.port});
  return std::move(claim.listeners);
}

void ChannelAgent::refuse(const std::string& why) {
  say(channel::Output{true, "ddprun: " + one_line(why) + "\n"});
  end_.exit_code = static_cast<int>(ExitCode::kUsage);
  child_ended_ = true;
  say_end_when_read();
}

void ChannelAgent::read_all() {
  for (Stream* stream : {&stdout_, &stderr_, &words_}) read(*stream);
}

void ChannelAgent::read(Stream& stream) {
  if (stream.reading || !stream.pipe.is_open() || (is_behind() && stream.type != 'w')) return;
  stream.reading = true;
  stream.pipe.async_read_some(boost::asio::buffer(stream.buffer),
                              [this, &stream](const ErrorResult& error, std::size_t num_bytes) {
                                stream.reading = false;
                                if (error) {
                                  ErrorResult ignored;
                                  stream.pipe.close(ignored);
                                  return say_end_when_read();
                                }
                                std::string bytes(stream.buffer.data(), num_bytes);
                                if (stream.type == 'w') {
                                  take_words(bytes);
                                } else {
                                  say(channel::Output{stream.type == 'e', std::move(bytes)});
                                }
                                read(stream);
                              });
}

// "I" for each round in which global rank 0 is here, then the report.
void ChannelAgent::take_words(std::string_view words) {
  while (last_words_.empty() && words.starts_with('I')) {
    words.remove_prefix(1);
    const bool is_first = !std::exchange(input_was_wanted_, true);
    say(channel::Room{is_first ? channel::kMostInputBytes : 0, true});
  }
  if (last_words_.size() + words.size() <= channel::kMostTextBytes) last_words_ += words;
}

void ChannelAgent::say(const channel::FromAgent& message) {
  if (channel_lost_) return;
  next_ += channel::encode(message);
  write_more();
}

void ChannelAgent::write_more() {
  if (!outgoing_.empty()) return;
  if (next_.empty()) {
    if (end_said_) io_.stop();
    return;
  }
  outgoing_.swap(next_);
  boost::asio::async_write(answers_, boost::asio::buffer(outgoing_),
                           [this](const ErrorResult& error, std::size_t) {
                             outgoing_.clear();
                             if (error) return lose_channel();
                             write_more();
                             read_all();
                           });
}

void ChannelAgent::on_child_end(int wait_status) {
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

// Somebody whom ddprun could not end may hold a pipe open; a launcher that is slow is waited for.
void ChannelAgent::await_output() {
  patience_.expires_after(kDrainPatience);
  patience_.async_wait([this](const ErrorResult& error) {
    if (error) return;
    if (is_behind()) return await_output();
    close_streams();
    say_end_when_read();
  });
}

void ChannelAgent::close_streams() {
  ErrorResult ignored;
  for (Stream* stream : {&stdout_, &stderr_, &words_}) stream->pipe.close(ignored);
}

bool ChannelAgent::is_behind() const {
  return !channel_lost_ && outgoing_.size() + next_.size() > kMostPendingBytes;
}

void ChannelAgent::say_end_when_read() {
  const bool all_read =
      !stdout_.pipe.is_open() && !stderr_.pipe.is_open() && !words_.pipe.is_open();
  if (!child_ended_ || !all_read || end_said_) return;
  patience_.cancel();
  end_.by_job = last_words_.starts_with('J');
  if (!last_words_.empty()) end_.last_words = last_words_.substr(1);
  end_said_ = true;
  say(end_);
}

// Nobody listens, or nobody is to run here any more: this node leaves the job.
void ChannelAgent::lose_channel() {
  if (channel_lost_) return;
  channel_lost_ = true;
  ErrorResult ignored;
  answers_.close(ignored);
  commands_.close(ignored);
  pulse_timer_.cancel();
  stdin_.close();
  if (!child_) return io_.stop();
  end_child();
  read_all();
}

void ChannelAgent::end_child() {
  lifeline_.reset();
  patience_.expires_after(std::chrono::seconds(stop_seconds_));
  patience_.async_wait([this](const ErrorResult& error) {
    if (!error && child_) child_->signal(SIGKILL);  // its warden ends the workers
  });
}

}  // namespace ddprun::launcher
