// SPDX-License-Identifier: Apache-2.0
// The agent's stdout and stderr, shared by all workers: whole lines, never blocking the io thread,
// bounded memory. io thread only.
#pragma once

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "agent/line_mux.h"
#include "common/clock.h"

namespace ddprun::agent {

class ConsoleSink;

enum class OutputStream { kStdout, kStderr };

struct ConsoleOptions {
  int stdin_fd = STDIN_FILENO;  // handed to workers; never read here
  int stdout_fd = STDOUT_FILENO;
  int stderr_fd = STDERR_FILENO;
  // Above this many bytes that the reader hasn't taken, workers' pipes are no longer read: a slow
  // reader slows the workers, as it would without ddprun in between, and loses nothing.
  std::size_t max_pending_bytes = 1 << 20;
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
  // stdout and stderr are one file: what goes to either keeps its order.
  bool same_file() const { return stderr_ == nullptr; }

  // Where the lines of a stream are put together; call flush() after a batch.
  LineMux& lines(OutputStream stream);
  void flush(OutputStream stream);

  // True while the stream's reader is more than max_pending_bytes behind. Then `on_room` is called,
  // once and never from inside this call, when it has caught up (or gone).
  bool is_full(OutputStream stream) const;
  void when_room(OutputStream stream, std::function<void()> on_room);

  // Writes all that is pending, blocking the caller. Returns how many bytes no reader had taken
  // when the deadline passed: they are dropped. For the end of the program.
  std::size_t finish(Deadline deadline);

 private:
  ConsoleSink& sink(OutputStream stream) const;

  const ConsoleOptions options_;
  // Second owner of each: its own wait for the reader, while one is under way.
  std::shared_ptr<ConsoleSink> stdout_;
  std::shared_ptr<ConsoleSink> stderr_;  // null: stdout_ serves both
};

}  // namespace ddprun::agent
