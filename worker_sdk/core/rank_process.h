// SPDX-License-Identifier: Apache-2.0
// One rank that spawn() started: this program once more, and what it says of itself. Both sides of
// the pipe between them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "common/environment.h"
#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun {

// How a rank ended.
struct RankEnd {
  bool is_well = false;  // the function returned, or the rank left with 0 from within it
  std::string text;      // "failed: …", "was ended by SIGKILL", "ended with exit code 3", …
  std::optional<ErrorCode> code;  // of the Error that it threw
};

// The parent's side. One thread: the kernel ends the rank when the thread that started it ends.
class RankProcess {
 public:
  // Starts /proc/self/exe with this process' arguments, `environment` and DDPRUN_SPAWN =
  // "<call> <rank> <descriptor>". Default signals, the caller's mask. Throws Error: no process, no
  // descriptor.
  RankProcess(int call, int rank, Environment environment);
  RankProcess(RankProcess&&) = default;
  // One that has not been reaped is killed.
  ~RankProcess();

  int rank() const { return rank_; }
  bool is_running() const { return pidfd_.valid(); }
  int pidfd() const { return pidfd_.get(); }  // readable once it has ended
  void signal(int signal_number);             // nothing where it has ended

  // After pidfd() was readable.
  RankEnd reap();

 private:
  int rank_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd report_;  // what the rank says
};

// The rank's side.
struct SpawnMarker {
  int call, rank, report_fd;
};
// Of this process; nullopt: spawn() of this program didn't start it. Throws Error(kInvalidArgument)
// where the variable has been tampered with.
std::optional<SpawnMarker> find_spawn_marker();

// To the parent: spawn() was reached; then, at most once, why the rank ends.
void report_reached(int report_fd);
void report_failure(int report_fd, std::optional<ErrorCode> code, const std::string& what);

}  // namespace ddprun
