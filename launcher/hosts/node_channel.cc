// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/node_channel.h"

#include <csignal>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kKeptWordsBytes = 4096;

using ErrorResult = boost::system::error_code;

}  // namespace

std::shared_ptr<NodeChannel> NodeChannel::start(boost::asio::io_context& io,
                                                std::vector<std::string> argv,
                                                std::vector<std::string> environment,
                                                std::chrono::milliseconds keep_alive,
                                                NodeChannelEvents events) {
  std::shared_ptr<NodeChannel> node(new NodeChannel(io, keep_alive, std::move(events)));
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Pipe words = make_pipe();
  ChildCommand command;
  command.argv = std::move(argv);
  command.environment = std::move(environment);
  command.descriptors = {in.read_end.get(), out.write_end.get(), words.write_end.get()};
  command.own_session = true;
  // Not an owner: it owns the process, which may not have been reaped when all is over.
  node->process_ = agent::WatchedChild::start(
      io, command, [weak = std::weak_ptr<NodeChannel>(node)](int wait_status) {
        const auto self = weak.lock();
        if (!self) return;
        self->has_ended_ = true;
        self->wait_status_ = wait_status;
        if (!self->paused_) self->drain();
      });
  node->to_agent_.assign(in.write_end.release());
  node->from_agent_.assign(out.read_end.release());
  node->words_.assign(words.read_end.release());
  node->to_agent_.non_blocking(true);
  node->from_agent_.non_blocking(true);
  node->words_.non_blocking(true);
  node->read_messages();
  node->read_words();
  return node;
}

NodeChannel::NodeChannel(boost::asio::io_context& io, std::chrono::milliseconds keep_alive,
                         NodeChannelEvents events)
    : events_(std::move(events)),
      to_agent_(io),
      from_agent_(io),
      words_(io),
      keep_alive_(keep_alive),
      pulse_timer_(io) {}

void NodeChannel::read_messages() {
  if (paused_ || reading_ || !from_agent_.is_open()) return;
  reading_ = true;
  from_agent_.async_read_some(
      boost::asio::buffer(buffer_),
      [self = shared_from_this()](const ErrorResult& error, std::size_t num_bytes) {
        self->reading_ = false;
        if (!self->events_.gone) return;
        if (error) {  // the end; the process' own end says why
          if (self->has_ended_) return self->end();
          return;
        }
        if (self->take(num_bytes)) self->read_messages();
      });
}

// False: no more is wanted for now.
bool NodeChannel::take(std::size_t num_bytes) {
  decoder_.feed({buffer_.data(), num_bytes});
  heartbeat_.heard(Clock::now());
  try {
    while (events_.heard) {
      auto message = decoder_.next_from_agent();
      if (!message) break;
      if (is_own(*message)) continue;
      // All that was read is delivered: what is pending is bounded by the buffer.
      if (!events_.heard(std::move(*message))) paused_ = true;
    }
  } catch (const Error& error) {
    fail(error.what());
    return false;
  }
  if (paused_) heartbeat_.listen(false, Clock::now());
  return !paused_ && events_.heard;
}

// What is not for the launcher to know. The heart beats from the agent's first word to its last.
bool NodeChannel::is_own(const channel::FromAgent& message) {
  if (variants::holds_alternative<channel::Hello>(message)) {
    heartbeat_.expect(keep_alive_, Clock::now());
    // Before the job, even where that waits to be written: without it the agent expects no pulse,
    // and a line that is cut now would leave the workers there.
    if (keep_alive_.count() > 0) send(channel::Pulse{keep_alive_});
    await_pulse();
  } else if (variants::holds_alternative<channel::End>(message)) {
    heartbeat_.expect(std::chrono::milliseconds{0}, Clock::now());
  }
  return variants::holds_alternative<channel::Pulse>(message);
}

void NodeChannel::await_pulse() {
  const auto at = heartbeat_.next();
  if (!at) return;
  pulse_timer_.expires_at(*at);
  pulse_timer_.async_wait([weak = weak_from_this()](const ErrorResult& error) {
    const auto self = weak.lock();
    if (error || !self || !self->events_.gone) return;
    const Heartbeat::Due due = self->heartbeat_.step(Clock::now());
    if (due.silent) {
      return self->fail(concat("nothing was heard of it for ", self->keep_alive_.count() / 1000.0,
                               " s (--ssh-keep-alive)"));
    }
    // One that can't be written now would only pile up.
    if (due.beat && self->outgoing_.empty()) self->send(channel::Pulse{self->keep_alive_});
    self->await_pulse();
  });
}

void NodeChannel::stand_still() {
  if (heartbeat_.next()) send(channel::Pulse{});
}

void NodeChannel::resume() {
  if (!paused_) return;
  paused_ = false;
  heartbeat_.listen(true, Clock::now());
  await_pulse();
  if (has_ended_) return drain();
  read_messages();
}

// The process has ended: all that it wrote is in the pipe, though somebody else (ssh's own
// multiplexing) may hold that open.
void NodeChannel::drain() {
  while (events_.gone && !paused_) {
    ErrorResult error;
    const std::size_t num_bytes = from_agent_.read_some(boost::asio::buffer(buffer_), error);
    if (error) return end();
    take(num_bytes);
  }
}

void NodeChannel::read_words() {
  words_.async_read_some(
      boost::asio::buffer(words_buffer_),
      [self = shared_from_this()](const ErrorResult& error, std::size_t num_bytes) {
        if (error) return;
        self->said_.append(self->words_buffer_.data(), num_bytes);
        if (self->said_.size() > kKeptWordsBytes) {
          self->said_.erase(0, self->said_.size() - kKeptWordsBytes);
        }
        self->read_words();
      });
}

void NodeChannel::send(const channel::FromLauncher& message) {
  next_ += channel::encode(message);
  write_more();
}

void NodeChannel::write_more() {
  if (!outgoing_.empty() || next_.empty() || !to_agent_.is_open()) return;
  outgoing_.swap(next_);
  boost::asio::async_write(to_agent_, boost::asio::buffer(outgoing_),
                           [self = shared_from_this()](const ErrorResult& error, std::size_t) {
                             self->outgoing_.clear();
                             if (!error) self->write_more();
                           });
}

void NodeChannel::fail(const std::string& fault) {
  auto gone = std::exchange(events_, {}).gone;
  close();
  if (gone) gone({wait_status_, fault, said_});
}

void NodeChannel::end() {
  ErrorResult error;
  for (;;) {  // what it wrote to stderr last
    const std::size_t num_bytes = words_.read_some(boost::asio::buffer(words_buffer_), error);
    if (error) break;
    said_.append(words_buffer_.data(), num_bytes);
  }
  if (said_.empty()) said_ = decoder_.prologue();
  auto gone = std::exchange(events_, {}).gone;
  close();
  if (gone) gone({wait_status_, "", said_});
}

void NodeChannel::close() {
  events_ = {};
  pulse_timer_.cancel();
  ErrorResult ignored;
  to_agent_.close(ignored);
  from_agent_.close(ignored);
  words_.close(ignored);
  if (process_) process_->signal(SIGKILL);
}

}  // namespace ddprun::launcher
