// SPDX-License-Identifier: Apache-2.0
#include "agent/console.h"

#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "agent/console_sink.h"
#include "agent/output/log_writer.h"
#include "common/standard_streams.h"

namespace ddprun::agent {
namespace {

bool is_same_file(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

bool is_wanted(const char* no_color, const char* term) {
  return std::string_view(no_color ? no_color : "").empty() &&
         std::string_view(term ? term : "") != "dumb";
}

ConsoleSinkOptions sink_options(const ConsoleOptions& options, const char* name) {
  return {name, options.max_pending_bytes, options.slow_reader, options.notice};
}

}  // namespace

Console::Console(boost::asio::io_context& io, ConsoleOptions options)
    : options_(std::move(options)), stdin_is_ours_(is_in_foreground(options_.stdin_fd)) {
  ::signal(SIGPIPE, SIG_IGN);
  stdout_ = std::make_shared<ConsoleSink>(io, options_.stdout_fd, sink_options(options_, "stdout"));
  if (!is_same_file(options_.stdout_fd, options_.stderr_fd)) {
    stderr_ =
        std::make_shared<ConsoleSink>(io, options_.stderr_fd, sink_options(options_, "stderr"));
  }
  log_writer_ = std::make_shared<LogWriter>(io, options_.notice);
}

Console::~Console() {
  stdout_->close();
  if (stderr_) stderr_->close();
  log_writer_->close();
}

ConsoleSink& Console::sink(OutputStream stream) const {
  return stream == OutputStream::kStderr && stderr_ ? *stderr_ : *stdout_;
}

int Console::fd(OutputStream stream) const {
  return stream == OutputStream::kStdout ? options_.stdout_fd : options_.stderr_fd;
}

bool Console::is_terminal(OutputStream stream) const { return sink(stream).is_terminal(); }

bool Console::has_colours(OutputStream stream) const {
  return is_terminal(stream) && is_wanted(std::getenv("NO_COLOR"), std::getenv("TERM"));
}

LineMux& Console::lines(OutputStream stream) { return sink(stream).lines(); }
void Console::flush(OutputStream stream) { sink(stream).flush(); }
bool Console::is_full(OutputStream stream) const { return sink(stream).is_full(); }

bool Console::must_wait(OutputStream stream, const LineSource& source) const {
  return is_full(stream) || sink(stream).lines().must_wait(source);
}

void Console::when_room(OutputStream stream, std::function<void()> on_room) {
  sink(stream).when_room(std::move(on_room));
}

bool Console::finish_files(Deadline deadline) { return log_writer_->finish(deadline); }

std::vector<std::string> Console::losses() const {
  std::vector<std::string> texts;
  for (const ConsoleSink* each : {stdout_.get(), stderr_.get()}) {
    if (std::string text = each ? each->losses() : ""; !text.empty()) texts.push_back(text);
  }
  for (std::string& text : log_writer_->losses()) texts.push_back(std::move(text));
  return texts;
}

std::size_t Console::finish(Deadline deadline) {
  const std::size_t dropped = stdout_->finish(deadline);
  return dropped + (stderr_ ? stderr_->finish(deadline) : 0);
}

}  // namespace ddprun::agent
