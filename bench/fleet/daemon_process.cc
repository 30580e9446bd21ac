// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>

#include "common/clock.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::bench {
namespace {

constexpr std::chrono::seconds kStartTimeout{10};
constexpr std::string_view kListening = "listening on ";

// Its output up to and with the line that names the address; throws where that doesn't come.
std::string read_until_listening(int fd) {
  const Deadline deadline = Deadline::after(kStartTimeout);
  std::string text;
  for (;;) {
    const std::size_t found = text.find(kListening);
    if (found != std::string::npos && text.find('\n', found) != std::string::npos) return text;
    if (!wait_ready(fd, POLLIN, deadline)) {
      throw Error(ErrorCode::kUnavailable, "ddprund did not listen within 10 s");
    }
    std::array<char, 4096> buffer;
    const ssize_t size = ::read(fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) throw Error(ErrorCode::kUnavailable, "ddprund ended at once: " + text);
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace

DaemonProcess::DaemonProcess() {
  const std::string program = own_folder() + "/ddprund";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe2", errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, write_end.get(), STDERR_FILENO);
  std::array<std::string, 3> words = {program, "--listen", "127.0.0.1:0"};
  std::array<char*, 4> argv = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int failed = ::posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    throw Error(ErrorCode::kUnavailable, "can't start " + program + ": " + errno_text(failed));
  }
  write_end.reset();
  try {
    const std::string text = read_until_listening(read_end.get());
    const std::size_t begin = text.find(kListening) + kListening.size();
    const auto endpoint = parse_endpoint(text.substr(begin, text.find('\n', begin) - begin), 0);
    if (!endpoint) throw Error(ErrorCode::kUnavailable, "ddprund named no address: " + text);
    endpoint_ = *endpoint;
  } catch (...) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw;
  }
}  // Nobody reads its later log lines: its DroppingSink drops them.

DaemonProcess::~DaemonProcess() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace ddprun::bench
