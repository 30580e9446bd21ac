// SPDX-License-Identifier: Apache-2.0
// The pipe: one byte 'R' when the rank has reached spawn(), then at most one failure: the code as a
// byte ('0' + ErrorCode, or '-'), and the text. All of it fits the pipe, so nobody has to read
// before the end.
#include "worker_sdk/core/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "common/child_process.h"
#include "common/env_names.h"
#include "common/log.h"
#include "common/signal_names.h"

namespace ddprun {
namespace {

constexpr char kProgram[] = "/proc/self/exe";  // also where its file was replaced or removed
constexpr char kReached = 'R';
constexpr char kNoCode = '-';
constexpr std::size_t kMaxText = 4000;

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', at), bytes.size());
    arguments.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  if (arguments.empty()) {
    throw Error(ErrorCode::kSystem, "spawn: /proc/self/cmdline is empty or missing: mount /proc");
  }
  return arguments;
}

std::string read_all(int fd) {
  std::string text(kMaxText + 2, '\0');
  std::size_t size = 0;
  for (;;) {
    const ssize_t count = ::read(fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

void write_all(int fd, const std::string& text) {
  ssize_t written;
  do {
    written = ::write(fd, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
}

}  // namespace

RankProcess::RankProcess(int call, int rank, Environment environment) : rank_(rank) {
  // Non-blocking: a child of the rank's own may hold the other end open when the rank has ended.
  Pipe pipe = make_pipe(O_NONBLOCK);
  report_ = std::move(pipe.read_end);
  const int rank_end = pipe.write_end.get();
  environment[env::kSpawn] = concat(call, ' ', rank, ' ', rank_end);
  ChildCommand command{.argv = own_arguments(),
                       .environment = to_strings(environment),
                       .program = kProgram,
                       .kept_descriptor = rank_end,
                       .dies_with_us = true,
                       .keeps_ignored = true};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &command.blocked);
  try {
    Child child = start_child(command);
    pid_ = child.pid;
    pidfd_ = std::move(child.pidfd);
  } catch (const StartError& error) {
    throw_system_error(concat("spawn: execve of ", kProgram), error.error_number());
  }
}

RankProcess::~RankProcess() {
  if (!is_running()) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void RankProcess::signal(int signal_number) {
  if (is_running()) ::kill(pid_, signal_number);
}

RankEnd RankProcess::reap() {
  siginfo_t info{};
  int result;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  } while (result != 0 && errno == EINTR);
  pidfd_.reset();
  const std::string said = read_all(report_.get());
  report_.reset();

  RankEnd end;
  const bool has_reached = !said.empty() && said[0] == kReached;
  if (said.size() > 1) {
    if (said[1] != kNoCode) end.code = static_cast<ErrorCode>(said[1] - '0');
    end.text = "failed: " + said.substr(2);
    return end;
  }
  if (result != 0) {  // a handler of the program's reaps children that are not its own
    end.text = "ended, and something else in this program took its exit status (waitpid)";
  } else if (info.si_code != CLD_EXITED) {
    end.text = "was ended by " + signal_name(info.si_status);
  } else if (info.si_status != 0) {
    end.text = concat("ended with exit code ", info.si_status,
                      has_reached ? "" : " before it came to spawn()");
  } else if (!has_reached) {
    end.text =
        "ended with exit code 0 before it came to spawn(): main() has to take the same way "
        "in a rank, up to this call";
  } else {
    end.is_well = true;
  }
  return end;
}

std::optional<SpawnMarker> find_spawn_marker() {
  const char* text = std::getenv(env::kSpawn);
  if (!text) return std::nullopt;
  SpawnMarker marker{};
  char more = 0;
  const int num_read =
      std::sscanf(text, "%d %d %d%c", &marker.call, &marker.rank, &marker.report_fd, &more);
  if (num_read == 3 && ::fcntl(marker.report_fd, F_GETFD) >= 0) return marker;
  throw Error(ErrorCode::kInvalidArgument,
              concat("spawn: ", env::kSpawn, "=\"", text,
                     "\" is not from a parent of this process: unset it"));
}

void report_reached(int report_fd) { write_all(report_fd, std::string(1, kReached)); }

void report_failure(int report_fd, std::optional<ErrorCode> code, const std::string& what) {
  const char byte = code ? static_cast<char>('0' + static_cast<int>(*code)) : kNoCode;
  write_all(report_fd, byte + what.substr(0, kMaxText));
}

}  // namespace ddprun
