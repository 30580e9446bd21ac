// SPDX-License-Identifier: Apache-2.0
#include "agent/helper_child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/child_pidfd.h"
#include "common/error.h"

namespace ddprun::agent {
namespace {

pid_t spawn(const std::string& program, int input, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  if (output >= 0) {
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // not for the terminal's Ctrl-C
  std::string name = program.substr(program.rfind('/') + 1);
  char* argv[] = {name.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw Error(ErrorCode::kSystem, "can't start " + program + ": " + errno_text(error));
  }
  return pid;
}

}  // namespace

std::shared_ptr<HelperChild> HelperChild::start(boost::asio::io_context& io,
                                                const std::string& program, int input, int output) {
  const pid_t pid = spawn(program, input, output);
  UniqueFd pidfd = open_child_pidfd(pid, program);
  std::shared_ptr<HelperChild> child(new HelperChild(io, pid, std::move(pidfd)));
  child->wait_for_end();
  return child;
}

HelperChild::HelperChild(boost::asio::io_context& io, pid_t pid, UniqueFd pidfd)
    : process_(std::in_place, pid), pidfd_(io, pidfd.release()) {}

// The handler keeps this object until the process is reaped.
void HelperChild::wait_for_end() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error) return;
                      int status = 0;
                      // Asio may wake us for another one's end, whose pidfd had this number.
                      if (::waitpid(self->process_->pid(), &status, WNOHANG) == 0) {
                        return self->wait_for_end();
                      }
                      self->process_.reset();
                      boost::system::error_code ignored;
                      self->pidfd_.close(ignored);
                      if (const auto ended = std::exchange(self->ended_, nullptr)) ended(status);
                    });
}

void HelperChild::kill() {
  if (process_) ::kill(process_->pid(), SIGKILL);
}

}  // namespace ddprun::agent
