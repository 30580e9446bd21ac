// SPDX-License-Identifier: Apache-2.0
#include "launcher/events/event_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace ddprun::launcher {
namespace {

std::optional<std::uint64_t> missing_lines(std::string_view line) {
  std::uint64_t number = 0;
  const char* end = line.data() + line.size() - 1;  // its "\n"
  const auto [stop, error] = std::from_chars(line.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// {…} becomes {…,"lost":N}.
std::string with_lost(std::string_view line, std::uint64_t num_lost) {
  std::string text(line.substr(0, line.rfind('}')));
  return text + ",\"lost\":" + std::to_string(num_lost) + "}\n";
}

}  // namespace

UniqueFd open_event_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  return UniqueFd(::open(path.c_str(), kFlags, 0666));
}

void EventFile::write(std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    if (line.empty()) return;  // no whole line: nobody writes that
    lines.remove_prefix(line.size());
    if (const auto missing = missing_lines(line)) {
      num_lost_ += *missing;
    } else {
      write_line(line);
    }
  }
}

void EventFile::write_line(std::string_view line) {
  std::string problem;
  if (!fd_) fd_ = options_.open(problem);
  std::string_view rest = rest_;
  if (problem.empty()) problem = write_out(rest);
  rest_.erase(0, rest_.size() - rest.size());
  const std::string text = num_lost_ > 0 ? with_lost(line, num_lost_) : std::string(line);
  std::string_view left = text;
  if (problem.empty()) problem = write_out(left);
  if (left.size() == text.size()) {
    ++num_lost_;
  } else {
    num_lost_ = 0;
    rest_ = left;  // it follows when there is room
  }
  is_in_trouble_ = !problem.empty();
  if (is_in_trouble_ && !std::exchange(has_told_, true) && options_.lost) options_.lost(problem);
}

// Takes from `text` what was written; "" or why that isn't all.
std::string EventFile::write_out(std::string_view& text) {
  const auto patience = is_in_trouble_ ? std::chrono::milliseconds(0) : options_.patience;
  const Deadline deadline = Deadline::after(patience);
  while (!text.empty()) {
    const ssize_t size = ::write(fd_.get(), text.data(), text.size());
    if (size > 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
      continue;
    }
    const int error = size < 0 ? errno : ENOSPC;
    if (error == EINTR) continue;
    if (error != EAGAIN) return errno_text(error);
    pollfd ready{fd_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) == 0) return "its reader takes nothing";
  }
  return {};
}

}  // namespace ddprun::launcher
