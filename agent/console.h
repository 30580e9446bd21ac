// SPDX-License-Identifier: Apache-2.0
// The agent's stdout and stderr, shared by all workers: whole lines, never blocking the io thread,
// bounded memory. io thread only.
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
  // Above this many bytes that the reader hasn't taken, `slow_reader` says what happens.
  std::size_t max_pending_bytes = 512 << 10;
  SlowReader slow_reader = SlowReader::kBlock;
  // Warnings for the user about the way of the output. May be empty.
  std::function<void(const std::string&)> notice = nullptr;
};

class Console {
 public:
  // Ignores SIGPIPE in this process: a reader that goes away is said once on the log, its stream's
  // output dropped, and the workers go on. Never changes the flags of the descriptors, which other
  // processes share: pipes and terminals are opened anew for non-blocking writes.
  explicit Console(boost::asio::io_context& io, ConsoleOptions options = {});
  ~Console();  // drops what is pending; see finish()
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const ConsoleOptions& options() const { return options_; }
  int fd(OutputStream stream) const;
  bool is_terminal(OutputStream stream) const;
  // A terminal that shows colours, and a user who hasn't asked for none (NO_COLOR).
  bool has_colours(OutputStream stream) const;
  // False where stdin is the terminal of another job in the foreground: what is typed is not meant
  // for us. (Workers have sessions of their own, so that the kernel would let them read it.)
  bool stdin_is_ours() const { return stdin_is_ours_; }
  // stdout and stderr are one file: what goes to either keeps its order.
  bool same_file() const { return stderr_ == nullptr; }

  // Puts together the lines of a stream. Call flush() after a batch.
  LineMux& lines(OutputStream stream);
  void flush(OutputStream stream);

  // True while the stream's reader is more than max_pending_bytes behind (never with kDrop).
  bool is_full(OutputStream stream) const;
  // True while is_full(), or while what `source` has waits for another's long line: read no more
  // from its worker. `on_room` is called once, and never from inside this call, when that may have
  // changed.
  bool must_wait(OutputStream stream, const LineSource& source) const;
  void when_room(OutputStream stream, std::function<void()> on_room);

  // Writes the log files, except those that workers write themselves.
  LogWriter& log_writer() { return *log_writer_; }
  // The workers' output that was lost, and why: one sentence each. For the end of the program.
  std::vector<std::string> losses() const;

  // Waits for the log files, blocking the caller; false: not all was written by then, losses() says
  // so. For the end of the program.
  bool finish_files(Deadline deadline);
  // Writes all that is pending, blocking the caller. Returns how many bytes no reader had taken
  // when the deadline passed: they are dropped. For the end of the program.
  std::size_t finish(Deadline deadline);

 private:
  ConsoleSink& sink(OutputStream stream) const;

  const ConsoleOptions options_;
  const bool stdin_is_ours_;
  // Second owner of each: its own wait for the reader, while one is under way.
  std::shared_ptr<ConsoleSink> stdout_;
  std::shared_ptr<ConsoleSink> stderr_;    // null: stdout_ serves both
  std::shared_ptr<LogWriter> log_writer_;  // second owners: its files
};

}  // namespace ddprun::agent
