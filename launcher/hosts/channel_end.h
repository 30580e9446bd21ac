// SPDX-License-Identifier: Apache-2.0
// One end of a channel: messages over two pipes, in and out, and its heartbeat. io thread only.
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

// Writes to a pipe in turn, at the pace at which its reader takes it.
class PipeWriter {
 public:
  // `written`: so many bytes have left; 0: nobody reads any more, and it is closed.
  PipeWriter(boost::asio::io_context& io, std::function<void(std::size_t num_bytes)> written)
      : pipe_(io), written_(std::move(written)) {}

  // Non-blocking from now on.
  void open(UniqueFd pipe) {
    pipe_.assign(pipe.release());
    pipe_.non_blocking(true);
  }
  // Nothing where it is closed.
  void write(std::string_view bytes) {
    if (!pipe_.is_open()) return;
    next_ += bytes;
    write_more();
  }
  // Drops the bytes that wait.
  void close() {
    next_.clear();
    boost::system::error_code ignored;
    pipe_.close(ignored);
  }

  bool is_open() const { return pipe_.is_open(); }
  // Bytes that wait.
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
  std::string next_;      // after it
};

// When to say that we are there, and when the other end has been silent for too long. Pure: no I/O,
// clock or timer.
class Heartbeat {
 public:
  // From now on the other end has to be heard within `patience`, again and again. This one says
  // three times in it that it is there. 0: neither.
  void expect(std::chrono::milliseconds patience, Clock::time_point now) {
    patience_ = patience;
    beat_at_.reset();
    if (patience_.count() > 0) beat_at_ = now;
    heard(now);
  }
  // Anything came from there.
  void heard(Clock::time_point now) {
    silent_at_.reset();
    if (patience_.count() > 0 && listens_) silent_at_ = now + patience_;
  }
  // False: this end reads nothing for now, so that silence means nothing.
  void listen(bool listens, Clock::time_point now) {
    listens_ = listens;
    heard(now);
  }

  struct Due {
    bool beat = false;    // say that we are there
    bool silent = false;  // nothing was heard for the patience
  };
  // The actions that are due. If this comes much later than next() asked for, this process itself
  // stood still (stopped, or its machine was). Messages from meanwhile have yet to be read, so the
  // wait begins anew.
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
    std::optional<Clock::time_point> next = beat_at_;
    keep_earlier(next, silent_at_);
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
    // An Error that it throws ends the channel as a broken message does.
    std::function<void(channel::Message)> heard;  // all but pulses
    // Nothing is heard any more. `fault`: what the other end did wrong; empty: its stream is at its
    // end, or it doesn't read any more.
    std::function<void(const std::string& fault)> lost;
    std::function<void()> written = nullptr;  // some of what was sent has left
  };

  // `other`: who is at the other end. The io context must not run once this is gone.
  ChannelEnd(boost::asio::io_context& io, channel::From other, Handlers handlers);

  // Both non-blocking from now on. Without `out` this end only hears.
  void open(UniqueFd in, UniqueFd out);
  void send(const channel::Message& message) { out_.write(channel::encode(message)); }
  // From now on a pulse goes out three times in each `patience`, and silence of that length is the
  // end. 0: neither. A launcher's pulse says so to an agent's end.
  void keep_alive(std::chrono::milliseconds patience);
  // Reads no more until resume(), so that silence means nothing. Messages that were read before are
  // still heard.
  void pause();
  void resume();
  // Reads at once what is in the pipe, unless this end is paused.
  void drain();
  // No call follows.
  void close();

  bool is_paused() const { return paused_; }
  bool is_open() const { return in_.is_open(); }
  // Bytes that wait to be taken.
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
  bool waiting_ = false;  // for input
  bool paused_ = false;
  bool at_end_ = false;  // nothing more is read
};

}  // namespace ddprun::launcher
