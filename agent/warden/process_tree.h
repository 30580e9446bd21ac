// SPDX-License-Identifier: Apache-2.0
// Finds all processes that the workers have started, by parents and children or by a cgroup, and
// kills them. No C++ library.
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
// existed during the whole call and that `choose` wants (null: all). Returns how many were
// signalled. A pid is signalled only while it can't have been reused. Direct children are not
// reaped meanwhile; deeper ones are held by a pidfd and checked again. A process born meanwhile may
// be missed: call again until wait(2) says ECHILD. This process must be a child subreaper, so that
// a process that loses its parent becomes its child. Nobody else may reap children during the call.
int signal_descendants(int signal_number, ChooseProcess choose, void* context);

// Whether the process ignores the signal. False also where there is no such process.
bool ignores_signal(pid_t pid, int signal_number);
// Whether the process has a handler for it. False also where there is no such process.
bool handles_signal(pid_t pid, int signal_number);

// Whether both run the same file, as a process and its fork do. False also where that isn't known.
bool run_same_program(pid_t one, pid_t other);

// A cgroup (v2) for the workers, if the warden may make one. It kills them in one step, however
// fast they fork. A later warden ends what a crash left in it.
class Cgroup {
 public:
  // Makes ddprun-warden-<pid> inside the cgroup of this process, and ends those beside it whose
  // warden is gone. If another warden has ended the new one so, the name gets other digits. If that
  // isn't possible (no cgroup v2, no permission, Linux before 5.14) there is none, and all else
  // works the same.
  Cgroup();
  // Takes a cgroup that the agent has made: `fd` is its descriptor, locked, and belongs to this
  // object now.
  Cgroup(int fd, const char* name);
  ~Cgroup();  // removes it, with what is in it; it must be empty of processes
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  // Returns the descriptor for clone3's CLONE_INTO_CGROUP; −1: there is none.
  int fd() const { return fd_; }

  // Sends SIGKILL to everything in it. False: there is no cgroup.
  bool kill() const;

 private:
  int fd_ = -1;      // locked (flock) as long as this warden lives
  int parent_ = -1;  // the directory that holds it
  char name_[64] = {};
};

// Writes `pid` (0: this process) to the cgroup's list. Returns 0, or -1 with errno.
int move_into(int cgroup_fd, pid_t pid);

// Finds the path of this process below its cgroup v2's root in the text of /proc/self/cgroup; pure.
// False if there is none or `size` is too small.
bool own_cgroup_path(const char* cgroup_text, char* path, size_t size);

// Finds the cgroup v2 directory of this process in the texts of /proc/self/{cgroup,mountinfo};
// pure. False if there is none or `size` is too small.
bool own_cgroup_directory(const char* cgroup_text, const char* mountinfo_text, char* path,
                          size_t size);

}  // namespace ddprun::agent::warden
