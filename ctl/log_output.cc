// SPDX-License-Identifier: Apache-2.0
#include "ctl/log_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "common/clock.h"
#include "common/standard_streams.h"

namespace ddprun::ctl {

LogOutput::LogOutput(int fd, Interrupts& interrupts)
    : fd_(fd),
      interrupts_(interrupts),
      lost_(fd == STDOUT_FILENO && was_stdout_closed() ? EBADF : 0) {}

bool LogOutput::write(std::string_view text) {
  const Deadline never = Deadline::after(std::chrono::hours::max());
  while (!text.empty()) {
    if (lost_ != 0) return false;
    interrupts_.wait_with(fd_, POLLOUT, never);
    if (interrupts_.signal()) return false;
    // So much a pipe that is ready takes at once.
    const ssize_t size = ::write(fd_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (size >= 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno != EINTR && errno != EAGAIN) {
      lost_ = errno;
    }
  }
  return true;
}

bool LogOutput::pause(std::chrono::milliseconds limit) {
  if (lost_ != 0) return false;
  const short state = interrupts_.wait_with(fd_, 0, Deadline::after(limit));
  if ((state & (POLLERR | POLLHUP)) != 0) lost_ = EPIPE;
  return lost_ == 0 && !interrupts_.signal();
}

submit::LogView LogOutput::view(PlaceQuestions& questions) {
  return {.show = [this](std::string_view text) { return write(text); },
          .pause = [this](std::chrono::milliseconds limit) { return pause(limit); },
          .ask = [&questions](const std::function<void()>& call) { return questions.ask(call); }};
}

}  // namespace ddprun::ctl
