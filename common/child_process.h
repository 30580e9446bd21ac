// SPDX-License-Identifier: Apache-2.0
// Starts a program as a child process. The caller's memory is never copied, however much it is.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun {

struct ChildCommand {
  // In `descriptors`, besides one of ours (borrowed):
  static constexpr int kSame = -1;     // the number stays as it is
  static constexpr int kNothing = -2;  // /dev/null

  std::vector<std::string> argv = {};
  std::vector<std::string> environment = {};  // NAME=VALUE
  std::string program = {};                   // the file; empty: argv[0], from PATH without a "/"
  std::vector<int> descriptors = {};          // become 0, 1, 2, …; all others are close-on-exec
  int kept_descriptor = kSame;                // stays open under its own number
  std::string directory = {};                 // where it starts; empty: here
  bool own_session = false;                   // the terminal's signals, and its end, don't reach it
  bool dies_with_us = false;                  // SIGKILL when the thread that started it ends
  bool keeps_ignored = false;    // what we ignore; every other signal has its default action
  bool plain_oom_score = false;  // oom_score_adj 0, whatever ours is
  sigset_t blocked = {};         // none by default
};

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd = {};  // readable once it has ended; the caller reaps it
};

// kSystem: "can't start PROGRAM[ in DIRECTORY]: …".
class StartError : public Error {
 public:
  StartError(const std::string& what, int error_number)
      : Error(ErrorCode::kSystem, what), error_number_(error_number) {}
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Waits until the program is executed. Throws StartError, or as open_child_pidfd().
Child start_child(const ChildCommand& command);

// Why a child did not become the program.
struct StartFailure {
  int error_number = 0;
  bool is_of_directory = false;
};

// As start_child(), but waits for nothing. A copy of this process enters the directory and executes
// the program. Either can be on a file system that doesn't answer. It writes a StartFailure to
// `report`, or closes it without one: it is executed, or was killed before.
Child start_child_apart(const ChildCommand& command, int report);

// Opens a pidfd of a child that was just started. If that fails (no descriptor is left, or Linux
// before 5.3), kills and reaps the child. Then throws Error(kSystem) or Error(kResourceExhausted),
// which names `program`. Precondition: nobody else reaps the child.
UniqueFd open_child_pidfd(pid_t child, const std::string& program);

// Both ends close-on-exec. Throws as throw_system_error.
struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};
Pipe make_pipe(int more_flags = 0);

// A child process that this program started for itself and reaps itself, as long as this lives.
// Whoever cleans up after others' children leaves these alone. One thread at a time.
class HelperProcess {
 public:
  explicit HelperProcess(pid_t pid);
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

bool is_helper_process(pid_t pid);

// All of them, the oldest first.
const std::vector<pid_t>& helper_processes();

}  // namespace ddprun
