// SPDX-License-Identifier: Apache-2.0
// The terminal that a program draws on: its keys one by one, another screen without a cursor, and
// all of it as it was at the end, however that comes. io thread only.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace ddprun::top {

class Terminal {
 public:
  struct Handlers {
    std::function<void(std::string_view bytes)> typed;
    std::function<void()> drained;  // all that was written is there: more may come
    std::function<void()> gone;     // it is no terminal any more
  };
  struct Size {
    std::size_t columns = 80, rows = 24;
  };

  // `in` and `out` are terminals. Throws Error where they can't be used as such.
  Terminal(boost::asio::io_context& io, int in, int out, Handlers handlers);
  ~Terminal();  // as leave()
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void enter();
  // Waits for 0.5 s at most for a terminal that takes nothing.
  void leave();
  bool is_entered() const { return is_entered_; }

  Size size() const;
  // Not before drained() has been called for what was written before.
  void write(std::string text);
  bool is_writing() const { return !outgoing_.empty(); }

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;
  // An open file of its own, so that it can be made non-blocking without the shell's becoming so.
  struct Opened;

  void read_next();
  void write_next();
  void write_blocking(std::string_view text);

  const Handlers handlers_;
  const std::unique_ptr<Opened> opened_;
  const int in_fd_, out_fd_;
  Descriptor in_, out_;
  termios before_{};
  bool is_entered_ = false, is_reading_ = false;
  std::uint64_t era_ = 0;        // of what is written: that of an earlier one is dropped
  std::size_t num_written_ = 0;  // of outgoing_
  std::string outgoing_;
  char typed_[256]{};
};

}  // namespace ddprun::top
