// SPDX-License-Identifier: Apache-2.0
#include "launcher/terminal_text.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun::launcher {
namespace {

constexpr int kPatienceMs = 10'000;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {  // somebody made the terminal non-blocking
      pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&entry, 1, kPatienceMs) <= 0) return;
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

}  // namespace

std::string own_line(LogLevel level, std::string_view text) {
  std::string line = "[ddprun] ";
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line += one_line(text);
  line += '\n';
  return line;
}

std::string one_line(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '\n') {
      line += "\\n";
    } else if (letter == '\t') {
      line += "\\t";
    } else if (byte < ' ' || byte == 0x7f) {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      line += letter;
    }
  }
  return line;
}

void write_to_stderr(std::string_view text) { write_all(STDERR_FILENO, text); }
void write_to_stdout(std::string_view text) { write_all(STDOUT_FILENO, text); }

void log_to_stderr(LogLevel level, std::string_view message) {
  write_to_stderr(own_line(level, message));
}

}  // namespace ddprun::launcher
