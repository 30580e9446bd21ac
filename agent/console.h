// SPDX-License-Identifier: Apache-2.0
// The agent's stdout and stderr, shared by all workers. It writes whole lines, never blocks the io
// thread, and uses bounded memory. io thread only.
#pragma once

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/line_mux.h"
#include "agent/output/output_options.h"
#include "common/clock.h"

namespace ddprun::agent {

class ConsoleSink;
class LogWriter;

struct ConsoleOptions {
  int stdin_fd = STDIN_FILENO;  // handed to workers; never read here
  int stdout_fd = STDOUT_FILENO;
  int stderr_fd = STDERR_FILENO;
  // Pending bytes that the reader hasn't taken. Above this limit `slow_reader` says what happens.
  std::size_t max_pending_bytes = 512 << 10;
  SlowReader slow_reader = SlowReader::kBlock;
  // Called with warnings for the user about the output. May be empty.
  std::function<void(const std::string&)> notice = nullptr;
};

class Console {
 public:
  // Ignores SIGPIPE in this process. When a reader goes away, the log says so once, its stream's
  // output is dropped, and the workers go on. Never changes the flags of the descriptors, which
  // other processes share: pipes and terminals are opened anew for non-blocking writes.
  explicit Console(boost::asio::io_context& io, ConsoleOptions options = {});
  ~Console();  // drops what is pending; see finish()
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const ConsoleOptions& options() const { return options_; }
  int fd(OutputStream stream) const;
  bool is_terminal(OutputStream stream) const;
  // Whether it is a terminal that shows colours, and the user hasn't asked for none (NO_COLOR).
  bool has_colours(OutputStream stream) const;
  // False where stdin is a terminal on which another job is in the foreground: what is typed is for
  // that job. (Workers have sessions of their own, so the kernel would let them read it.)
  bool stdin_is_ours() const { return stdin_is_ours_; }
  // Whether stdout and stderr are one file: what goes to either keeps its order.
  bool same_file() const { return stderr_ == nullptr; }

  // Returns the object that puts the stream's lines together. Call flush() after a batch.
  LineMux& lines(OutputStream stream);
  void flush(OutputStream stream);

  // True while the stream's reader is more than max_pending_bytes behind. Never true with kDrop.
  bool is_full(OutputStream stream) const;
  // True while is_full(), or while `source` has bytes that wait for the end of another's long line.
  // Then read no more from its worker. when_room() calls `on_room` once, when that may have
  // changed, and never from inside this call.
  bool must_wait(OutputStream stream, const LineSource& source) const;
  void when_room(OutputStream stream, std::function<void()> on_room);

  // Returns the writer of the log files, except those that workers write themselves.
  LogWriter& log_writer() { return *log_writer_; }
  // Returns which output of the workers was lost, and why: one sentence each. For the program's
  // end.
  std::vector<std::string> losses() const;

  // Waits for the log files, blocking the caller. False: not all was written before the deadline;
  // losses() says so. For the program's end.
  bool finish_files(Deadline deadline);
  // Writes all that is pending, blocking the caller. At the deadline it drops the bytes that no
  // reader has taken, and returns their number. For the program's end.
  std::size_t finish(Deadline deadline);

 private:
  ConsoleSink& sink(OutputStream stream) const;

  const ConsoleOptions options_;
  const bool stdin_is_ours_;
  // Each is shared with its own wait for the reader, while one is under way.
  std::shared_ptr<ConsoleSink> stdout_;
  std::shared_ptr<ConsoleSink> stderr_;    // null: stdout_ serves both
  std::shared_ptr<LogWriter> log_writer_;  // shared with its files
};

}  // namespace ddprun::agent
