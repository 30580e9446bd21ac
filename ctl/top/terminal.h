// SPDX-License-Identifier: Apache-2.0
// The terminal of stdin and stdout, by ncurses: keys one by one, a screen without a cursor, and all
// of it as it was at the end, however that comes but for SIGKILL. One at a time; io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>

#include "ctl/top/styled_text.h"

namespace ddprun::top {

// The signs and styles that the terminal understands.
struct Look {
  bool has_unicode = false;  // else each character becomes one of ASCII
  bool has_color = false;    // else bold, dim and reversed alone
};

class Terminal {
 public:
  struct Handlers {
    std::function<void(int key)> pressed;  // as ncurses has it
    std::function<void()> drained;         // is_busy() is over
    std::function<void()> gone;            // it is no terminal any more
  };

  // Has the screen from now on. Throws Error where it can't be used as one.
  Terminal(boost::asio::io_context& io, const Look& look, Handlers handlers);
  ~Terminal();  // as leave()
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // The screen is the shell's until show().
  void leave();
  // The screen may show anything now: the next picture is drawn as a whole, in the screen's size.
  void forget();

  std::size_t columns() const;
  std::size_t rows() const;
  // It takes nothing for now, and a picture would wait; drained() will be called.
  bool is_busy();
  void show(const Lines& lines);

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;
  void read_next();

  const Look look_;
  const Handlers handlers_;
  Descriptor in_, out_;  // open files of their own: the shell's don't become non-blocking
  bool is_waiting_ = false;
};

}  // namespace ddprun::top
