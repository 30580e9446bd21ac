// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stack_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <charconv>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxOutput = 1 << 20;
constexpr int kNotFound = 127;

std::string contents(int fd) {
  const off_t size = std::min<off_t>(::lseek(fd, 0, SEEK_END), kMaxOutput);
  std::string text(size > 0 ? static_cast<std::size_t>(size) : 0, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

// 0, or why not.
int spawn(const std::string& program, const std::vector<pid_t>& pids, int output, pid_t* pid) {
  std::vector<std::string> words{"ddprun-stacks"};
  for (const pid_t each : pids) words.push_back(std::to_string(each));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // not for the terminal's Ctrl-C
  const int error =
      ::posix_spawn(pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

ProcessStacks parse_stacks(std::string_view text) {
  ProcessStacks stacks;
  std::map<pid_t, std::vector<std::string>> native;
  pid_t pid = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // cut off
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view kind = line.substr(0, space), rest = line.substr(space + 1);
    if (kind == "pid") {
      pid = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), pid);
    } else if (kind == "native") {
      native[pid].emplace_back(rest);
    } else if (kind == "python") {
      stacks[pid].frames.emplace_back(rest);
    } else if (kind == "note") {
      stacks[pid].note = rest;
    }
  }
  for (auto& [of, frames] : native) {
    auto& all = stacks[of].frames;
    std::move(frames.begin(), frames.end(), std::back_inserter(all));
  }
  return stacks;
}

std::shared_ptr<StackProcess> StackProcess::start(boost::asio::io_context& io,
                                                  const std::string& program,
                                                  const std::vector<pid_t>& pids,
                                                  std::chrono::milliseconds limit, Done done) {
  std::shared_ptr<StackProcess> process(new StackProcess(io, std::move(done)));
  process->output_.reset(::memfd_create("ddprun-stacks", MFD_CLOEXEC));
  int error = process->output_ ? 0 : errno;
  if (error == 0) error = spawn(program, pids, process->output_.get(), &process->pid_);
  if (error != 0) {
    boost::asio::post(io, [process, program, error] {
      process->finish("can't start " + program + ": " + errno_text(error));
    });
    return process;
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process->pid_, 0)));
  if (!pidfd) {  // no descriptor is left
    ::kill(process->pid_, SIGKILL);
    ::waitpid(process->pid_, nullptr, 0);
    boost::asio::post(io, [process] { process->finish("no descriptor is left"); });
    return process;
  }
  process->pidfd_.assign(pidfd.release());
  process->limit_.expires_after(limit);
  process->limit_.async_wait([weak = process->weak_from_this()](const auto& expired_error) {
    const auto self = weak.lock();
    if (!expired_error && self) ::kill(self->pid_, SIGKILL);
  });
  process->wait_for_end();
  return process;
}

StackProcess::StackProcess(boost::asio::io_context& io, Done done)
    : pidfd_(io), limit_(io), done_(std::move(done)) {}

// The handler keeps this object until the process is reaped.
void StackProcess::wait_for_end() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error) return;
                      int status = 0;
                      if (::waitpid(self->pid_, &status, WNOHANG) == 0) return self->wait_for_end();
                      self->limit_.cancel();
                      boost::system::error_code ignored;
                      self->pidfd_.close(ignored);
                      const bool missing = WIFEXITED(status) && WEXITSTATUS(status) == kNotFound;
                      self->finish(missing ? "ddprun-stacks can't run (is libdw installed?)" : "");
                    });
}

void StackProcess::finish(std::string problem) {
  if (const Done done = std::exchange(done_, nullptr)) {
    done(parse_stacks(output_ ? contents(output_.get()) : ""), std::move(problem));
  }
}

void StackProcess::abandon() {
  done_ = nullptr;
  if (pidfd_.is_open()) ::kill(pid_, SIGKILL);
}

}  // namespace ddprun::agent
