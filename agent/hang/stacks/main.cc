// SPDX-License-Identifier: Apache-2.0
// ddprun-stacks: prints for people where the main threads of processes are. It is a process of its
// own, so that the agent has no tracing and no symbol tables. Standard input is a SOCK_SEQPACKET
// socket. Each message on it is an array of pid_t with a pipe. For each process the pipe gets the
// following text as soon as it is known, once for native frames and once for Python's:
//   pid 4711
//   native load_batch(int)
//   note can't be traced: …
//   debugger debugpy
// A child does this, since it may hang; it has 2 s. The program ends with its input, and with the
// agent.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "agent/hang/stacks/stacks.h"
#include "common/socket.h"

namespace {

constexpr unsigned kSecondsToLive = 2;
constexpr std::size_t kMaxPids = 256;
constexpr std::size_t kMaxNativeFrames = 24;
constexpr std::size_t kMaxPythonFrames = 32;
constexpr std::size_t kMaxFrameBytes = 400;

void print(pid_t pid, const char* kind, const std::vector<std::string>& frames,
           const std::string& note) {
  std::string text = "pid " + std::to_string(pid) + "\n";
  for (const std::string& frame : frames) {
    text += kind + (" " + frame.substr(0, kMaxFrameBytes)) + "\n";
  }
  if (!note.empty()) text += "note " + note + "\n";
  // Writes it in one call, so that the texts are complete if this process is killed.
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) ::_exit(1);
}

[[noreturn]] void take_stacks(const std::vector<pid_t>& pids, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::signal(SIGCHLD, SIG_DFL);
  ::alarm(kSecondsToLive);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  ddprun::agent::native_stacks(pids, kMaxNativeFrames,
                               [](pid_t pid, const ddprun::agent::NativeStack& stack) {
                                 print(pid, "native", stack.frames, stack.note);
                               });
  for (const pid_t pid : pids) {
    if (!ddprun::agent::is_python(pid)) continue;
    if (ddprun::agent::has_debugpy(pid)) print(pid, "debugger", {"debugpy"}, "");
    const ddprun::agent::PythonStack stack = ddprun::agent::python_stack(pid, kMaxPythonFrames);
    print(pid, "python", stack.frames, stack.note);
  }
  ::_exit(0);
}

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGCHLD, SIG_IGN);  // nobody waits for the children: one may hang
  ddprun::agent::load_native_stacks();
  // Keeps the program in memory, if allowed: later its file server may be gone.
  ::mlockall(MCL_CURRENT);
  const pid_t self = ::getpid();
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, -1) < 0) continue;  // a signal has interrupted it
    char buffer[kMaxPids * sizeof(pid_t)];
    const ddprun::FdMessage request = ddprun::receive_with_fd(STDIN_FILENO, buffer, sizeof buffer);
    if (request.size <= 0) return 0;
    std::vector<pid_t> pids(static_cast<std::size_t>(request.size) / sizeof(pid_t));
    std::memcpy(pids.data(), buffer, pids.size() * sizeof(pid_t));
    if (!request.fd || ::fork() != 0) continue;
    ::dup2(request.fd.get(), STDOUT_FILENO);
    ::close(STDIN_FILENO);
    take_stacks(pids, self);
  }
}
