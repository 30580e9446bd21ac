// SPDX-License-Identifier: Apache-2.0
// One end of a channel: sends and receives messages over two pipes, with a heartbeat. io thread
// only.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

// Writes bytes to a pipe in their order, as fast as its reader takes them.
class PipeWriter {
 public:
  // `written` gets the number of bytes that have left. 0: nobody reads any more, and the pipe is
  // closed.
  PipeWriter(boost::asio::io_context& io, std::function<void(std::size_t num_bytes)> written)
      : pipe_(io), written_(std::move(written)) {}

  // Takes the pipe, and makes it non-blocking.
  void open(UniqueFd pipe) {
    pipe_.assign(pipe.release());
    pipe_.non_blocking(true);
  }
  // Writes nothing if the pipe is closed.
  void write(std::string_view bytes) {
    if (!pipe_.is_open()) return;
    next_ += bytes;
    write_more();
  }
  // Drops the bytes that wait to be written.
  void close() {
    next_.clear();
    boost::system::error_code ignored;
    pipe_.close(ignored);
  }

  bool is_open() const { return pipe_.is_open(); }
  // The number of bytes that wait to be written.
  std::size_t pending() const { return outgoing_.size() + next_.size(); }

 private:
  void write_more() {
    if (!outgoing_.empty() || next_.empty()) return;
    outgoing_.swap(next_);
    boost::asio::async_write(pipe_, boost::asio::buffer(outgoing_),
                             [this](const boost::system::error_code& error, std::size_t size) {
                               outgoing_.clear();
                               if (!pipe_.is_open()) return;
                               if (error) close();
                               written_(error ? 0 : size);
                               write_more();
                             });
  }

  boost::asio::posix::stream_descriptor pipe_;
  const std::function<void(std::size_t)> written_;
  std::string outgoing_;  // being written
  std::string next_;      // to be written after outgoing_
};

// Decides when to send a pulse, and when the other end has been silent for too long. Pure: no I/O,
// clock or timer.
class Heartbeat {
 public:
  // From now on the other end must be heard within each `patience`, and this end sends three pulses
  // in that time. 0: neither.
  void expect(std::chrono::milliseconds patience, Clock::time_point now) {
    patience_ = patience;
    beat_at_.reset();
    if (patience_.count() > 0) beat_at_ = now;
    heard(now);
  }
  // Called when anything came from the other end.
  void heard(Clock::time_point now) {
    silent_at_.reset();
    if (patience_.count() > 0 && listens_) silent_at_ = now + patience_;
  }
  // False: this end doesn't read for now, so the other end's silence means nothing.
  void listen(bool listens, Clock::time_point now) {
    listens_ = listens;
    heard(now);
  }

  struct Due {
    bool beat = false;    // send a pulse
    bool silent = false;  // nothing was heard for the patience
  };
  // Returns the actions that are due. If it is called much later than next() asked for, this
  // process itself stood still (it or its machine was stopped). Messages from that time are still
  // unread, so the wait starts again.
  Due step(Clock::time_point now) {
    const auto interval = patience_ / 3;
    const auto asked_for = next();
    if (asked_for && now - *asked_for > interval) heard(now);
    const Due due{beat_at_ && *beat_at_ <= now, silent_at_ && *silent_at_ <= now};
    if (due.beat) beat_at_ = now + interval;
    return due;
  }
  // When step() is to be called; nullopt: not before expect().
  std::optional<Clock::time_point> next() const {
    std::optional<Clock::time_point> next;
    for (const auto& at : {beat_at_, silent_at_}) keep_earlier(next, at);
    return next;
  }

  std::chrono::milliseconds patience() const { return patience_; }

 private:
  std::chrono::milliseconds patience_{0};
  bool listens_ = true;
  std::optional<Clock::time_point> beat_at_;
  std::optional<Clock::time_point> silent_at_;
};

class ChannelEnd {
 public:
  struct Handlers {
    // An Error that it throws ends the channel as a wrong message does.
    std::function<void(channel::Message)> heard;  // all but pulses
    // Called when nothing more will be heard. `fault`: what the other end did wrong; empty: its
    // stream has ended, or it doesn't read any more.
    std::function<void(const std::string& fault)> lost;
    std::function<void()> written = nullptr;  // some of the sent bytes have left
  };

  // `other` is the sender at the other end. The io context must not run once this object is gone.
  ChannelEnd(boost::asio::io_context& io, channel::From other, Handlers handlers);

  // Takes both pipes, and makes them non-blocking. Without `out` this end only receives.
  void open(UniqueFd in, UniqueFd out);
  void send(const channel::Message& message) { out_.write(channel::encode(message)); }
  // From now on sends three pulses in each `patience`; silence of that length ends the channel. 0:
  // neither. A launcher's pulse tells this time to an agent's end.
  void keep_alive(std::chrono::milliseconds patience);
  // Reads no more until resume(), so silence means nothing. Messages that were read before are
  // still handled.
  void pause();
  void resume();
  // Reads now what is in the pipe, unless this end is paused.
  void drain();
  // Handlers aren't called after this.
  void close();

  bool is_paused() const { return paused_; }
  bool is_open() const { return in_.is_open(); }
  // The number of bytes that wait to be written.
  std::size_t pending() const { return out_.pending(); }
  std::chrono::milliseconds patience() const { return heartbeat_.patience(); }
  std::string prologue() const { return decoder_.prologue(); }

 private:
  void await_input();
  bool take();
  void hear(channel::Message message);
  void pulse();
  void lose(const std::string& fault);

  const channel::From other_;
  const Handlers handlers_;
  boost::asio::posix::stream_descriptor in_;
  PipeWriter out_;
  channel::Decoder decoder_;
  Heartbeat heartbeat_;
  boost::asio::steady_timer pulse_timer_;
  std::array<char, 65536> buffer_;
  bool waiting_ = false;  // a wait for input is under way
  bool paused_ = false;
  bool at_end_ = false;  // nothing more is read
};

}  // namespace ddprun::launcher
