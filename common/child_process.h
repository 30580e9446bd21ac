// SPDX-License-Identifier: Apache-2.0
// Starts a program as a child process. The caller's memory is never copied, whatever its size.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun {

struct ChildCommand {
  // Values in `descriptors`, besides descriptors of this process (borrowed):
  static constexpr int kSame = -1;     // the number stays as it is
  static constexpr int kNothing = -2;  // /dev/null

  std::vector<std::string> argv = {};
  std::vector<std::string> environment = {};  // NAME=VALUE
  std::string program = {};           // the file; empty: argv[0], searched in PATH if it has no "/"
  std::vector<int> descriptors = {};  // these become 0, 1, 2, …; all others are close-on-exec
  int kept_descriptor = kSame;        // stays open under its own number
  std::string directory = {};         // where it starts; empty: in the current directory
  bool own_session = false;           // the terminal's signals and its closing don't reach it
  bool dies_with_us = false;          // it gets SIGKILL when the thread that started it ends
  // Keeps signals ignored that this process ignores; others get their default action.
  bool keeps_ignored = false;
  bool plain_oom_score = false;  // oom_score_adj 0, whatever this process has
  sigset_t blocked = {};         // blocked signals; none by default
};

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd = {};  // readable once it has ended; the caller reaps it
};

// Its code is kSystem, its text "can't start PROGRAM[ in DIRECTORY]: …".
class StartError : public Error {
 public:
  StartError(const std::string& what, int error_number)
      : Error(ErrorCode::kSystem, what), error_number_(error_number) {}
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Starts the child and waits until the program is executed. Throws StartError, or as
// open_child_pidfd().
Child start_child(const ChildCommand& command);

// The reason why a child did not become the program.
struct StartFailure {
  int error_number = 0;
  bool is_of_directory = false;
};

// Does the same as start_child(), but waits for nothing. A copy of this process enters the
// directory and executes the program. Either can be on a file system that doesn't answer. The copy
// writes a StartFailure to `report`. If it closes `report` without one, the program is executed, or
// the child was killed before.
Child start_child_apart(const ChildCommand& command, int report);

// Opens a pidfd of a child that was just started. If that fails (no descriptor is left, or Linux
// before 5.3), it kills and reaps the child. Then it throws Error(kSystem) or
// Error(kResourceExhausted), which names `program`. Nobody else may reap the child.
UniqueFd open_child_pidfd(pid_t child, const std::string& program);

// Both ends are close-on-exec. Throws as throw_system_error().
struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};
Pipe make_pipe(int more_flags = 0);

// The two ends of a connection between Unix sockets of a type (SOCK_STREAM, …); the rest is as for
// a pipe.
std::pair<UniqueFd, UniqueFd> make_socket_pair(int type);

// A child process that this program started for itself and reaps itself, during the life of this
// object. Code that cleans up after others' children leaves these alone. One thread at a time.
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

// Returns all of them, the oldest first.
const std::vector<pid_t>& helper_processes();

}  // namespace ddprun
