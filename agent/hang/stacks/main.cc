// SPDX-License-Identifier: Apache-2.0
// ddprun-stacks PID…: where the main threads of these processes are, for people. A process of its
// own, so that tracing and symbol tables are not the agent's; ends by itself after 2 s, and with
// the agent. For each process as soon as it is known, once for native frames and once for Python's:
//   pid 4711
//   native load_batch(int)
//   note can't be traced: …
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "agent/hang/stacks/native_stack.h"
#include "agent/hang/stacks/python_stack.h"

namespace {

constexpr unsigned kSecondsToLive = 2;
constexpr std::size_t kMaxNativeFrames = 16;
constexpr std::size_t kMaxPythonFrames = 8;
constexpr std::size_t kMaxFrameBytes = 400;

void print(pid_t pid, const char* kind, const std::vector<std::string>& frames,
           const std::string& note) {
  std::string text = "pid " + std::to_string(pid) + "\n";
  for (const std::string& frame : frames) {
    text += kind + (" " + frame.substr(0, kMaxFrameBytes)) + "\n";
  }
  if (!note.empty()) text += "note " + note + "\n";
  // One write: what is there when this process is killed is whole.
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) ::_exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kSecondsToLive);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  std::vector<pid_t> pids;
  for (int i = 1; i < argc; ++i) pids.push_back(static_cast<pid_t>(std::atoi(argv[i])));
  for (const pid_t pid : pids) {
    const auto stack = ddprun::agent::native_stack(pid, kMaxNativeFrames);
    print(pid, "native", stack.frames, stack.note);
  }
  for (const pid_t pid : pids) {
    if (!ddprun::agent::is_python(pid)) continue;
    print(pid, "python", ddprun::agent::python_stack(pid, kMaxPythonFrames), "");
  }
  return 0;
}
