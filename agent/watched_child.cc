// SPDX-License-Identifier: Apache-2.0
#include "agent/watched_child.h"

#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "common/environment.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {

std::shared_ptr<WatchedChild> WatchedChild::start(boost::asio::io_context& io,
                                                  const ChildCommand& command, Ended ended) {
  return adopt(io, start_child(command), std::move(ended));
}

std::shared_ptr<WatchedChild> WatchedChild::adopt(boost::asio::io_context& io, Child child,
                                                  Ended ended) {
  std::shared_ptr<WatchedChild> watched(new WatchedChild(io, std::move(child), std::move(ended)));
  watched->wait_for_end();
  return watched;
}

std::shared_ptr<WatchedChild> WatchedChild::start_helper(boost::asio::io_context& io,
                                                         const std::string& program, int input,
                                                         int output, Ended ended) {
  return start(io,
               {.argv = {program.substr(program.rfind('/') + 1)},
                .environment = to_strings(current_environment()),
                .program = program,
                .descriptors = {input, output, ChildCommand::kNothing},
                .own_session = true,
                .keeps_ignored = true},
               std::move(ended));
}

WatchedChild::WatchedChild(boost::asio::io_context& io, Child child, Ended ended)
    : pid_(child.pid),
      process_(std::in_place, child.pid),
      pidfd_(io, child.pidfd.release()),
      ended_(std::move(ended)) {}

// The handler keeps this object until the process is reaped.
void WatchedChild::wait_for_end() {
  when_readable(pidfd_, [self = shared_from_this()] {
    int status = 0;
    // Asio may report the end of an earlier child whose pidfd had this number.
    if (::waitpid(self->pid_, &status, WNOHANG) == 0) {
      return self->wait_for_end();
    }
    self->process_.reset();
    boost::system::error_code ignored;
    self->pidfd_.close(ignored);
    if (const auto ended = std::exchange(self->ended_, nullptr)) ended(status);
  });
}

void WatchedChild::signal(int number) {
  if (is_running()) ::kill(pid_, number);
}

}  // namespace ddprun::agent
