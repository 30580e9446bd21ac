// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/text.h"

namespace ddprun {
namespace {

bool was_closed = false;  // whether stdout was closed when the program began

bool is_named_by_environment(int fd) {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(fd, &status) != 0) return false;
  return stream == concat(status.st_dev, ':', status.st_ino);
}

}  // namespace

void open_standard_streams() {
  was_closed = ::fcntl(STDOUT_FILENO, F_GETFD) < 0;
  int fd;
  do {
    fd = ::open("/dev/null", O_RDWR);  // gets the lowest free number
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

bool was_stdout_closed() { return was_closed; }

bool is_in_foreground(int fd) {
  // −1: it is no terminal, or not this process' controlling one.
  const pid_t foreground = ::tcgetpgrp(fd);
  return foreground < 0 || foreground == ::getpgrp();
}

int write_stdout(const std::string& text) {
  if (was_stdout_closed()) return EBADF;
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return is_written && std::fflush(stdout) == 0 ? 0 : errno;
}

int print_what_was_asked(const char* program, const std::string& text) {
  const int error = write_stdout(text);
  if (error == 0 || error == EPIPE) return static_cast<int>(ExitCode::kOk);
  std::fprintf(stderr, "%s: can't write to stdout: %s\n", program, errno_text(error).c_str());
  return static_cast<int>(ExitCode::kOutputLost);
}

bool stderr_is_journal() {
  static const bool is_journal = is_named_by_environment(STDERR_FILENO);
  return is_journal;
}

std::string_view journal_prefix(LogLevel level) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"<7>", "<6>", "<4>", "<3>"};  // syslog(3)
  return stderr_is_journal() ? kPrefixes[static_cast<std::size_t>(level)] : std::string_view();
}

}  // namespace ddprun
