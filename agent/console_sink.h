// SPDX-License-Identifier: Apache-2.0
// One file that workers' output is written to, without ever blocking. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/line_mux.h"
#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  // `name` is for the message when the reader has gone.
  ConsoleSink(boost::asio::io_context& io, int fd, std::string name, std::size_t max_pending_bytes);

  bool is_terminal() const { return terminal_; }
  LineMux& lines() { return lines_; }

  // Writes what the lines hold now; the rest when the reader takes it.
  void flush();
  bool is_full() const { return num_pending_bytes() > max_pending_bytes_; }
  void when_room(std::function<void()> on_room);

  // See Console::finish.
  std::size_t finish(Deadline deadline);
  // Forgets what is pending and those who wait; nothing is written any more.
  void close();

 private:
  std::size_t num_pending_bytes() const { return pending_.size() - written_; }
  enum class Progress { kDone, kBlocked, kLost };
  Progress write_pending();
  long write_some(const char* data, std::size_t size);
  void wait_writable();
  void lose(int error_number);
  void call_waiters();
  int columns() const;

  // Constant after construction.
  boost::asio::io_context& io_;
  const int original_fd_;
  const std::string name_;
  const std::size_t max_pending_bytes_;
  bool terminal_ = false;
  bool socket_ = false;
  bool may_block_ = false;  // could not be opened anew: small writes when poll allows
  UniqueFd own_fd_;         // opened anew, non-blocking

  // io thread only.
  LineMux lines_;
  std::string pending_;
  std::size_t written_ = 0;  // of pending_
  bool waiting_ = false;
  bool lost_ = false;
  std::unique_ptr<boost::asio::posix::stream_descriptor> writable_;  // made at the first wait
  std::vector<std::function<void()>> waiters_;
};

}  // namespace ddprun::agent
