// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {
namespace {

constexpr int kMaxDepth = 64;  // deeper ones become nearer when those above them have died

struct Sweep {
  int signal_number;
  ChooseProcess choose;
  void* context;
  bool has_children_files;  // CONFIG_PROC_CHILDREN
  int num_signalled;
};

// The parent of `pid`; -1 when it is gone.
pid_t parent_of(pid_t pid) {
  ProcessStat stat;
  return read_process_stat(pid, &stat) ? stat.parent : -1;
}

void signal_one(Sweep& sweep, pid_t pid, pid_t parent) {
  if (parent == getpid()) {  // only we can reap it: the number is its own
    if (kill(pid, sweep.signal_number) == 0) ++sweep.num_signalled;
    return;
  }
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  const pid_t now = parent_of(pid);
  if (now == parent || now == getpid()) {
    if (syscall(SYS_pidfd_send_signal, fd, sweep.signal_number, nullptr, 0) == 0) {
      ++sweep.num_signalled;
    }
  }
  close(fd);
}

void visit(Sweep& sweep, pid_t pid, pid_t parent, int depth);

// Children of one thread, from the kernel's list.
void visit_children_file(Sweep& sweep, const char* path, pid_t parent, int depth) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;  // the thread is gone
  char buffer[1024];
  pid_t pid = 0;
  ssize_t size;
  while ((size = read(fd, buffer, sizeof buffer)) > 0) {
    for (ssize_t i = 0; i < size; ++i) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        pid = pid * 10 + (buffer[i] - '0');
      } else if (pid > 0) {
        visit(sweep, pid, parent, depth);
        pid = 0;
      }
    }
  }
  if (pid > 0) visit(sweep, pid, parent, depth);
  close(fd);
}

// Without CONFIG_PROC_CHILDREN: every process is asked for its parent.
void visit_by_scan(Sweep& sweep, pid_t parent, int depth) {
  DIR* all = opendir("/proc");
  if (!all) return;
  while (const dirent* entry = readdir(all)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid > 0 && parent_of(pid) == parent) visit(sweep, pid, parent, depth);
  }
  closedir(all);
}

void visit_children(Sweep& sweep, pid_t parent, int depth) {
  if (depth > kMaxDepth) return;
  if (!sweep.has_children_files) return visit_by_scan(sweep, parent, depth);
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/task", parent);
  DIR* threads = opendir(path);
  if (!threads) return;  // gone
  while (const dirent* entry = readdir(threads)) {
    const int thread = atoi(entry->d_name);
    if (thread <= 0) continue;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, thread);
    visit_children_file(sweep, path, parent, depth);
  }
  closedir(threads);
}

void visit(Sweep& sweep, pid_t pid, pid_t parent, int depth) {
  const Visit wish = sweep.choose ? sweep.choose(pid, sweep.context) : Visit::kSignal;
  if (wish == Visit::kPrune) return;
  // The parent before its children: it may start no further one, and those it has become ours.
  if (wish == Visit::kSignal || wish == Visit::kAlone) signal_one(sweep, pid, parent);
  if (wish == Visit::kAlone) return;
  visit_children(sweep, pid, depth + 1);
}

}  // namespace

int signal_descendants(int signal_number, ChooseProcess choose, void* context) {
  char own_list[64];
  snprintf(own_list, sizeof own_list, "/proc/self/task/%d/children", getpid());
  const bool has_children_files = access(own_list, R_OK) == 0;
  Sweep sweep{signal_number, choose, context, has_children_files, 0};
  visit_children(sweep, getpid(), 1);
  return sweep.num_signalled;
}

bool ignores_signal(pid_t pid, int signal_number) {
  ProcessStat stat;
  return read_process_stat(pid, &stat) && (stat.ignored >> (signal_number - 1) & 1) != 0;
}

bool handles_signal(pid_t pid, int signal_number) {
  ProcessStat stat;
  return read_process_stat(pid, &stat) && (stat.caught >> (signal_number - 1) & 1) != 0;
}

}  // namespace ddprun::agent::warden
