// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_end.h"

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::launcher {

using channel::From;
using channel::Message;
using channel::Pulse;

ChannelEnd::ChannelEnd(boost::asio::io_context& io, From other, Handlers handlers)
    : other_(other),
      handlers_(std::move(handlers)),
      in_(io),
      out_(io,
           [this](std::size_t num_bytes) {
             if (num_bytes == 0) return handlers_.lost("");
             if (handlers_.written) handlers_.written();
           }),
      decoder_(other),
      pulse_timer_(io) {}

void ChannelEnd::open(UniqueFd in, UniqueFd out) {
  in_.assign(in.release());
  in_.non_blocking(true);
  if (out) out_.open(std::move(out));
  await_input();
}

void ChannelEnd::await_input() {
  if (waiting_ || paused_ || at_end_ || !is_open()) return;
  waiting_ = true;
  in_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                 [this](const boost::system::error_code& error) {
                   waiting_ = false;
                   if (error || paused_) return;
                   take();
                   await_input();
                 });
}

// Reads once. False: there was nothing.
bool ChannelEnd::take() {
  if (at_end_ || !is_open()) return false;
  boost::system::error_code error;
  const std::size_t num_bytes = in_.read_some(boost::asio::buffer(buffer_), error);
  if (error == boost::asio::error::would_block || error == boost::asio::error::interrupted) {
    return false;
  }
  if (error) {
    lose("");
    return false;
  }
  decoder_.feed({buffer_.data(), num_bytes});
  heartbeat_.heard(Clock::now());
  try {
    // All messages that were read are handled, even if one pauses this end: the buffer bounds them.
    while (is_open()) {
      auto message = decoder_.next();
      if (!message) break;
      hear(std::move(*message));
    }
  } catch (const Error& broken) {
    lose(broken.what());
  }
  return true;
}

void ChannelEnd::hear(Message message) {
  const auto* pulse = variants::get_if<Pulse>(&message);
  if (pulse == nullptr) return handlers_.heard(std::move(message));
  if (other_ == From::kLauncher && pulse->patience != patience()) keep_alive(pulse->patience);
}

void ChannelEnd::keep_alive(std::chrono::milliseconds patience) {
  heartbeat_.expect(patience, Clock::now());
  pulse();
}

void ChannelEnd::pulse() {
  const Heartbeat::Due due = heartbeat_.step(Clock::now());
  if (due.silent) {
    return lose(concat("nothing was heard of it for ", patience().count() / 1000.0,
                       " s (--ssh-keep-alive)"));
  }
  // A pulse that can't be written now would only wait behind others.
  if (due.beat && pending() == 0) send(Pulse{patience()});
  const auto next = heartbeat_.next();
  if (!next) {
    pulse_timer_.cancel();
    return;
  }
  run_at(pulse_timer_, *next, [this] {
    if (is_open()) pulse();
  });
}

void ChannelEnd::pause() {
  paused_ = true;
  heartbeat_.listen(false, Clock::now());
}

void ChannelEnd::resume() {
  paused_ = false;
  heartbeat_.listen(true, Clock::now());
  await_input();
}

void ChannelEnd::drain() {
  while (!paused_ && take()) {
  }
}

void ChannelEnd::lose(const std::string& fault) {
  at_end_ = true;
  handlers_.lost(fault);
}

void ChannelEnd::close() {
  pulse_timer_.cancel();
  out_.close();
  boost::system::error_code ignored;
  in_.close(ignored);
}

}  // namespace ddprun::launcher
