// SPDX-License-Identifier: Apache-2.0
#include "agent/console.h"

#include <signal.h>
#include <sys/stat.h>

#include "agent/console_sink.h"

namespace ddprun::agent {
namespace {

bool is_same_file(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

}  // namespace

Console::Console(boost::asio::io_context& io, ConsoleOptions options) : options_(options) {
  ::signal(SIGPIPE, SIG_IGN);
  stdout_ =
      std::make_shared<ConsoleSink>(io, options.stdout_fd, "stdout", options.max_pending_bytes);
  if (!is_same_file(options.stdout_fd, options.stderr_fd)) {
    stderr_ =
        std::make_shared<ConsoleSink>(io, options.stderr_fd, "stderr", options.max_pending_bytes);
  }
}

Console::~Console() {
  stdout_->close();
  if (stderr_) stderr_->close();
}

ConsoleSink& Console::sink(OutputStream stream) const {
  return stream == OutputStream::kStderr && stderr_ ? *stderr_ : *stdout_;
}

int Console::fd(OutputStream stream) const {
  return stream == OutputStream::kStdout ? options_.stdout_fd : options_.stderr_fd;
}

bool Console::is_terminal(OutputStream stream) const { return sink(stream).is_terminal(); }
LineMux& Console::lines(OutputStream stream) { return sink(stream).lines(); }
void Console::flush(OutputStream stream) { sink(stream).flush(); }
bool Console::is_full(OutputStream stream) const { return sink(stream).is_full(); }

void Console::when_room(OutputStream stream, std::function<void()> on_room) {
  sink(stream).when_room(std::move(on_room));
}

std::size_t Console::finish(Deadline deadline) {
  const std::size_t dropped = stdout_->finish(deadline);
  return dropped + (stderr_ ? stderr_->finish(deadline) : 0);
}

}  // namespace ddprun::agent
