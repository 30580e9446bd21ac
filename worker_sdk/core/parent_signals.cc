// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/parent_signals.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>

#include "common/error.h"

namespace ddprun {
namespace {

// A handler has no other way to know it.
std::atomic<int> pipe_of_handler{-1};

}  // namespace

void ParentSignals::note(int signal_number) {
  const int saved = errno;
  const char byte = static_cast<char>(signal_number);
  if (::write(pipe_of_handler.load(), &byte, 1) < 0) {
    // Full: so many signals are waiting already.
  }
  errno = saved;
}

ParentSignals::ParentSignals() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw_system_error("pipe2", errno);
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  pipe_of_handler = write_end_.get();
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, nullptr, &interrupt_);
  ::sigaction(SIGTERM, nullptr, &terminate_);
  ::sigaction(SIGCHLD, nullptr, &child_);
  if (interrupt_.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
  if (terminate_.sa_handler != SIG_IGN) ::sigaction(SIGTERM, &action, nullptr);
  if (child_.sa_handler != SIG_IGN && !(child_.sa_flags & SA_NOCLDWAIT)) return;
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &plain, nullptr);
}

ParentSignals::~ParentSignals() {
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
  ::sigaction(SIGCHLD, &child_, nullptr);
  pipe_of_handler = -1;
}

int ParentSignals::take() {
  char byte = 0;
  return ::read(read_end_.get(), &byte, 1) == 1 ? byte : 0;
}

}  // namespace ddprun
