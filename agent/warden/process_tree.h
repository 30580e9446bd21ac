// SPDX-License-Identifier: Apache-2.0
// All that the workers have started: found by parents and children, or by a cgroup, and killed. No
// C++ library.
#pragma once

#include <stdint.h>
#include <sys/types.h>

namespace ddprun::agent::warden {

enum class Visit {
  kSignal,  // this process and what is below it
  kPass,    // not this process, but what is below it
  kAlone,   // this process, but not what is below it
  kPrune,   // neither
};
using ChooseProcess = Visit (*)(pid_t pid, void* context);  // `context` is the caller's

// Sends `signal_number` once to every descendant of this process, whatever its session, that
// existed during the whole call and that `choose` (null: all) wants. Returns how many were
// signalled. A pid is signalled only while it can't have been reused. Direct children are not
// reaped meanwhile; deeper ones are held by a pidfd and checked again. A process born meanwhile may
// be missed: call again until wait(2) says ECHILD. This process must be a child subreaper, so that
// what loses its parent becomes a child here. Nobody else may reap children during the call.
int signal_descendants(int signal_number, ChooseProcess choose, void* context);

// False also where there is no such process.
bool ignores_signal(pid_t pid, int signal_number);
// Whether the process has a handler for it. False also where there is no such process.
bool handles_signal(pid_t pid, int signal_number);

// Whether both run the same file, as a process and its fork do. False also where that isn't known.
bool run_same_program(pid_t one, pid_t other);

// A cgroup (v2) of the workers' own, if the warden may make one. It kills them in one step, however
// fast they fork. A later warden finds there what a crash left.
class Cgroup {
 public:
  // Makes ddprun-warden-<pid> inside the cgroup of this process, and ends those beside it whose
  // warden is gone. Other digits follow if another warden has ended it so. If that isn't possible
  // (no cgroup v2, no permission, Linux before 5.14) there is none, and nothing else differs.
  Cgroup();
  // The agent has made it: `fd` is it, locked, and becomes this one's.
  Cgroup(int fd, const char* name);
  ~Cgroup();  // removes it, with what is in it; it must be empty of processes
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  // For clone3's CLONE_INTO_CGROUP; −1: there is none.
  int fd() const { return fd_; }

  // SIGKILL to everything in it. False: there is no cgroup.
  bool kill() const;

 private:
  int fd_ = -1;      // locked (flock) as long as this warden lives
  int parent_ = -1;  // the directory that holds it
  char name_[64] = {};
};

// Writes `pid` (0: this process) to the cgroup's list. 0, or -1 with errno.
int move_into(int cgroup_fd, pid_t pid);

// The path of this process below its cgroup v2's root, as /proc/self/cgroup has it; pure. False
// where there is none or `size` is too small.
bool own_cgroup_path(const char* cgroup_text, char* path, size_t size);

// The cgroup v2 directory of this process, as /proc/self/{cgroup,mountinfo} text has it; pure.
// False where there is none or `size` is too small.
bool own_cgroup_directory(const char* cgroup_text, const char* mountinfo_text, char* path,
                          size_t size);

}  // namespace ddprun::agent::warden
