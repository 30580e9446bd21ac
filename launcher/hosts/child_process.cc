// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/child_pidfd.h"
#include "common/error.h"

namespace ddprun::launcher {
namespace {

pid_t spawn(ChildCommand command) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // First away from the numbers that they are to get: none must lose to another one.
  std::vector<UniqueFd> apart;
  const int num_targets = static_cast<int>(command.descriptors.size());
  for (int target = 0; target < num_targets; ++target) {
    apart.emplace_back(::fcntl(command.descriptors[target].get(), F_DUPFD_CLOEXEC, num_targets));
    if (!apart.back()) throw_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
    posix_spawn_file_actions_adddup2(&actions, apart.back().get(), target);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t every;
  sigfillset(&every);
  posix_spawnattr_setsigdefault(&attributes, &every);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  int flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
  if (command.own_session) flags |= POSIX_SPAWN_SETSID;
  posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
  const std::vector<char*> argv = exec_pointers(command.argv);
  const std::vector<char*> envp = exec_pointers(command.environment);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, argv.front(), &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw Error(ErrorCode::kSystem,
                "can't start " + command.argv.front() + ": " + errno_text(error));
  }
  return pid;
}

}  // namespace

std::vector<char*> exec_pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& each : strings) result.push_back(each.data());
  result.push_back(nullptr);
  return result;
}

std::shared_ptr<ChildProcess> ChildProcess::start(boost::asio::io_context& io, ChildCommand command,
                                                  std::function<void(int)> ended) {
  const std::string program = command.argv.front();
  const pid_t pid = spawn(std::move(command));
  return adopt(io, pid, program, std::move(ended));
}

std::shared_ptr<ChildProcess> ChildProcess::adopt(boost::asio::io_context& io, pid_t pid,
                                                  const std::string& program,
                                                  std::function<void(int)> ended) {
  UniqueFd pidfd = open_child_pidfd(pid, program);
  std::shared_ptr<ChildProcess> child(
      new ChildProcess(io, pid, std::move(pidfd), std::move(ended)));
  child->wait_for_end();
  return child;
}

ChildProcess::ChildProcess(boost::asio::io_context& io, pid_t pid, UniqueFd pidfd,
                           std::function<void(int)> ended)
    : pid_(pid), pidfd_(io, pidfd.release()), ended_(std::move(ended)) {}

// The handler keeps this object until the process is reaped.
void ChildProcess::wait_for_end() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error) return;
                      int status = 0;
                      // Asio may wake us for another one's end, whose pidfd had this number.
                      if (::waitpid(self->pid_, &status, WNOHANG) == 0) {
                        return self->wait_for_end();
                      }
                      self->pid_ = 0;
                      boost::system::error_code ignored;
                      self->pidfd_.close(ignored);
                      if (const auto ended = std::exchange(self->ended_, nullptr)) ended(status);
                    });
}

void ChildProcess::signal(int number) {
  if (pid_ != 0) ::kill(pid_, number);
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace ddprun::launcher
