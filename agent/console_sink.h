// SPDX-License-Identifier: Apache-2.0
// One file that workers' output is written to, without ever blocking. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/line_mux.h"
#include "agent/output/output_options.h"
#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

struct ConsoleSinkOptions {
  std::string name;  // for messages: "stdout"
  std::size_t max_pending_bytes = 0;
  SlowReader slow_reader = SlowReader::kBlock;
  std::function<void(const std::string&)> notice;  // a warning for the user
};

class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  ConsoleSink(boost::asio::io_context& io, int fd, ConsoleSinkOptions options);

  bool is_terminal() const { return terminal_; }
  LineMux& lines() { return lines_; }
  void set_slow_reader(SlowReader slow_reader) { options_.slow_reader = slow_reader; }

  // Writes what the lines hold now; the rest when the reader takes it.
  void flush();
  bool is_full() const { return options_.slow_reader == SlowReader::kBlock && is_behind(); }
  void when_room(std::function<void()> on_room);

  // What did not reach the reader, in words; empty: nothing is to be said.
  std::string losses() const;

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
  bool is_behind() const { return num_pending_bytes() > options_.max_pending_bytes; }
  void lose(int error_number);
  bool lose_some(int error_number);
  void call_waiters();
  void follow_reader();
  void say_that_workers_wait();
  void arm_wake();
  int columns() const;

  // Constant after construction.
  boost::asio::io_context& io_;
  const int original_fd_;
  ConsoleSinkOptions options_;
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
  bool full_disk_said_ = false;
  bool dropping_said_ = false;
  std::uint64_t num_unwritten_bytes_ = 0;         // for want of space on the disk
  std::optional<Clock::time_point> full_since_;   // workers wait for the reader
  std::chrono::nanoseconds waited_{0};            // in earlier times
  boost::asio::steady_timer wake_timer_;          // of lines_
  std::optional<Clock::time_point> wake_set_to_;  // set: the timer is under way
  boost::asio::steady_timer patience_;            // until it is said that workers wait
  std::unique_ptr<boost::asio::posix::stream_descriptor> writable_;  // made at the first wait
  std::vector<std::function<void()>> waiters_;
};

}  // namespace ddprun::agent
