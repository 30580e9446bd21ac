// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stacks/python_stack.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxOutput = 64 << 10;

}  // namespace

bool is_python(pid_t pid) {
  std::array<char, 4096> buffer;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), buffer.data(), buffer.size());
  if (size <= 0) return false;
  const std::string_view path(buffer.data(), static_cast<std::size_t>(size));
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

std::vector<std::string> parse_py_spy(std::string_view text, std::size_t max_frames) {
  std::vector<std::string> frames;
  bool in_main = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.starts_with("Thread ")) {
      in_main = line.find("\"MainThread\"") != std::string_view::npos;
    } else if (in_main && line.starts_with("    ") && frames.size() < max_frames) {
      frames.emplace_back(line.substr(line.find_first_not_of(' ')));
    }
  }
  return frames;
}

std::vector<std::string> python_stack(pid_t pid, std::size_t max_frames) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const std::string number = std::to_string(pid);
  const pid_t child = ::fork();  // this process is small and has one thread
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ends[1], STDOUT_FILENO);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    // Reads memory only: a killed py-spy that had stopped its process could leave it stopped.
    ::execlp("py-spy", "py-spy", "dump", "--nonblocking", "--pid", number.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t size; child > 0 && text.size() < kMaxOutput &&
                     (size = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  return parse_py_spy(text, max_frames);
}

}  // namespace ddprun::agent
