// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "common/child_process.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/socket.h"

namespace ddprun::doctor {
namespace {

constexpr char kEndOfAnswer = '\x04';  // comes after the last field's NUL

// Without this, a program that reads our output would also wait for a stuck probe.
void leave_standard_streams() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
}

[[noreturn]] void answer_and_end(const std::function<Probe::Fields()>& question, int fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  leave_standard_streams();
  try {
    std::string text;
    for (const std::string& field : question()) text.append(field).push_back('\0');
    write_text(fd, text + kEndOfAnswer);
  } catch (const std::exception&) {  // no answer: the parent sees the end of the pipe
  }
  ::_exit(0);
}

}  // namespace

Probe::Probe(const std::function<Fields()>& question) {
  Pipe pipe = make_pipe();
  answer_ = std::move(pipe.read_end);
  // Forking is cheaper than starting another program: this one is small and has one thread.
  pid_ = ::fork();
  if (pid_ < 0) throw_system_error("fork", errno);
  if (pid_ == 0) answer_and_end(question, pipe.write_end.get());
}

Probe::Probe(Probe&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), answer_(std::move(other.answer_)) {}

Probe::~Probe() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, WNOHANG);  // not reaped if it can't end yet: init will do that
}

std::optional<Probe::Fields> Probe::answer(Deadline deadline) {
  std::string text;
  std::array<char, 16384> buffer;
  while (wait_ready(answer_.get(), POLLIN, deadline)) {
    const ssize_t size = ::read(answer_.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  if (text.empty() || text.back() != kEndOfAnswer) return std::nullopt;
  text.pop_back();
  Fields fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\0', at);
    fields.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return fields;
}

}  // namespace ddprun::doctor
