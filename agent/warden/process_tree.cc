// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {
namespace {

constexpr int kMaxDepth = 64;  // deeper ones come nearer when the processes above them have died

struct Sweep {
  int signal_number;
  ChooseProcess choose;
  void* context;
  bool has_children_files;  // CONFIG_PROC_CHILDREN
  int num_signalled;
};

// Returns the parent of `pid`; -1 when it is gone.
pid_t parent_of(pid_t pid) {
  ProcessStat stat;
  return read_process_stat(pid, &stat) ? stat.parent : -1;
}

void signal_one(Sweep& sweep, pid_t pid, pid_t parent) {
  if (parent == getpid()) {  // only this process can reap it, so the number is still its own
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

// Visits the children of one thread, from the kernel's list.
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

// Visits the children without CONFIG_PROC_CHILDREN: reads the parent of every process.
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
  if (!threads) return;  // the process is gone
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
  // The parent is signalled before its children: it may start no more, and its children become this
  // process'.
  if (wish == Visit::kSignal || wish == Visit::kAlone) signal_one(sweep, pid, parent);
  if (wish == Visit::kAlone) return;
  visit_children(sweep, pid, depth + 1);
}

constexpr char kPrefix[] = "ddprun-warden-";
constexpr int kPatienceMs = 50;  // killed processes leave within microseconds

// Returns the file's text, which the caller frees; null if it can't be read.
char* contents_of(const char* path) {
  constexpr size_t kLimit = 1 << 20;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  char* text = fd < 0 ? nullptr : static_cast<char*>(malloc(kLimit));
  size_t size = 0;
  for (ssize_t n = 1; text && n > 0 && size<kLimit - 1; size += n> 0 ? n : 0) {
    n = read(fd, text + size, kLimit - 1 - size);
  }
  if (text) text[size] = '\0';
  if (fd >= 0) close(fd);
  return text;
}

bool write_one(int directory, const char* file) {
  const int fd = openat(directory, file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = write(fd, "1", 1) == 1;
  close(fd);
  return done;
}

bool is_a_wardens(const char* name) {
  const size_t prefix = sizeof kPrefix - 1;
  const size_t length = strlen(name);
  return strncmp(name, kPrefix, prefix) == 0 && length > prefix &&
         strspn(name + prefix, "0123456789") == length - prefix;
}

// Calls `call` for each directory in this one.
template <typename Call>
void for_each_below(int directory_fd, Call call) {
  const int again = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = again < 0 ? nullptr : fdopendir(again);
  if (!directory) return;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') call(entry->d_name);
  }
  closedir(directory);
}

// Waits until no process is in the cgroup or below it. The kernel reports each change of
// cgroup.events since it was read as POLLPRI.
void wait_until_empty(int directory) {
  const int fd = openat(directory, "cgroup.events", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  pollfd change{fd, POLLPRI, 0};
  do {
    char text[256];
    const ssize_t size = pread(fd, text, sizeof text - 1, 0);
    text[size < 0 ? 0 : size] = '\0';
    if (!strstr(text, "populated 1")) break;
  } while (poll(&change, 1, kPatienceMs) > 0);
  close(fd);
}

// Removes the directories in `at`, which it closes, until one has a process. It needs few
// descriptors at any depth: it goes down into the first one that isn't empty, and up again.
void remove_those_in(int at) {
  constexpr int kMostTurns = 1 << 16;  // some other process may go on making more
  bool goes_down = true, goes_on = true;
  for (int depth = 0, turn = 0; at >= 0 && goes_on && turn < kMostTurns;
       depth += goes_down ? 1 : -1, ++turn) {
    int next = -1;
    bool has_removed = false;
    for_each_below(at, [&](const char* inner) {
      if (next >= 0) return;
      if (unlinkat(at, inner, AT_REMOVEDIR) == 0) {
        has_removed = true;
      } else {
        next = openat(at, inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      }
    });
    // After coming up it stops if nothing was removed: the directory that it comes from stays.
    goes_on = goes_down || has_removed;
    goes_down = next >= 0;
    if (!goes_down && depth > 0) next = openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(at);
    at = next;
  }
  if (at >= 0) close(at);
}

void remove_directory(int parent, const char* name) {
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno != EBUSY) return;
  // It has processes that are just ending, or cgroups that they made: all of it may be removed.
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  wait_until_empty(fd);
  remove_those_in(fd);
  unlinkat(parent, name, AT_REMOVEDIR);
}

// Ends a cgroup that a crash left. A held lock means a live warden, in whatever pid namespace.
void end_leftover(int parent, const char* name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    write_one(fd, "cgroup.kill");
    remove_directory(parent, name);
  }
  close(fd);
}

// Opens and locks a cgroup. −1: another warden has taken it for a crash's leftover before it was
// locked, and removes it.
int open_locked(int parent, const char* name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && faccessat(fd, "cgroup.procs", F_OK, 0) == 0) return fd;
  close(fd);
  return -1;
}

void end_leftovers(int parent) {
  for_each_below(parent, [&](const char* name) {
    if (is_a_wardens(name)) end_leftover(parent, name);
  });
}

// Copies `text` up to a blank or the end of the line; false: it is too long.
bool copy_field(const char* text, char* field, size_t size) {
  const size_t length = strcspn(text, " \n");
  if (length >= size) return false;
  memcpy(field, text, length);
  field[length] = '\0';
  return true;
}

// Opens a cgroup v2 directory; −1: it isn't there.
int open_cgroup(const char* path) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct statfs system;
  if (fd < 0 || (fstatfs(fd, &system) == 0 && system.f_type == CGROUP2_SUPER_MAGIC)) return fd;
  close(fd);
  return -1;
}

// Tries the usual mount points first: reading the list of mounts takes longer (0.1 ms) than all the
// rest.
int open_where_it_is_mounted_usually(const char* cgroup_text) {
  char own[1024], path[1100];
  if (!own_cgroup_path(cgroup_text, own, sizeof own)) return -1;
  const char* const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
  for (const char* mount : mounts) {
    snprintf(path, sizeof path, "%s%s", mount, own);
    if (const int fd = open_cgroup(path); fd >= 0) return fd;
  }
  return -1;
}

int open_by_mountinfo(const char* cgroup_text) {
  char path[2048];
  char* mounts = contents_of("/proc/self/mountinfo");
  const bool found = mounts && own_cgroup_directory(cgroup_text, mounts, path, sizeof path);
  free(mounts);
  return found ? open_cgroup(path) : -1;
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

bool run_same_program(pid_t one, pid_t other) {
  const pid_t pids[] = {one, other};
  struct stat files[2];
  for (int i = 0; i < 2; ++i) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/exe", pids[i]);
    if (stat(path, &files[i]) != 0) return false;
  }
  return files[0].st_dev == files[1].st_dev && files[0].st_ino == files[1].st_ino;
}

int move_into(int cgroup_fd, pid_t pid) {
  const int fd = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[16];
  const int size = snprintf(text, sizeof text, "%d", static_cast<int>(pid));
  const bool done = write(fd, text, static_cast<size_t>(size)) == size;
  const int error = errno;
  close(fd);
  errno = error;
  return done ? 0 : -1;
}

bool own_cgroup_path(const char* cgroup_text, char* path, size_t size) {
  const char* line = strncmp(cgroup_text, "0::", 3) == 0 ? cgroup_text : nullptr;
  if (!line) {
    line = strstr(cgroup_text, "\n0::");
    if (!line) return false;
    ++line;
  }
  return copy_field(line + 3, path, size);
}

bool own_cgroup_directory(const char* cgroup_text, const char* mountinfo_text, char* path,
                          size_t size) {
  char own[1024], root[1024], mount[1024];
  if (!own_cgroup_path(cgroup_text, own, sizeof own)) return false;
  // The form is "31 23 0:28 ROOT MOUNT_POINT options… - cgroup2 …".
  for (const char* line = mountinfo_text; line && *line; line = strchr(line, '\n')) {
    if (*line == '\n' && *++line == '\0') break;
    const char* end = strchr(line, '\n');
    const char* type = strstr(line, " - cgroup2 ");
    if (!type || (end && type > end)) continue;
    const char* field = line;
    for (int i = 0; field && i < 3; ++i) {
      field = strchr(field, ' ');
      if (field) ++field;
    }
    if (!field || !copy_field(field, root, sizeof root)) return false;
    field = strchr(field, ' ');
    if (!field || !copy_field(field + 1, mount, sizeof mount)) return false;
    const size_t skipped = strcmp(root, "/") == 0 ? 0 : strlen(root);
    const bool is_below = strncmp(own, root, skipped) == 0 &&
                          (skipped == 0 || own[skipped] == '/' || own[skipped] == '\0');
    if (!is_below) return false;
    const int length = snprintf(path, size, "%s%s", mount, own + skipped);
    return length > 0 && static_cast<size_t>(length) < size;
  }
  return false;
}

Cgroup::Cgroup() {
  char* cgroup = contents_of("/proc/self/cgroup");
  if (cgroup) {
    parent_ = open_where_it_is_mounted_usually(cgroup);
    if (parent_ < 0) parent_ = open_by_mountinfo(cgroup);
  }
  free(cgroup);
  if (parent_ < 0 || faccessat(parent_, ".", W_OK, 0) != 0) return;
  end_leftovers(parent_);
  constexpr int kMostAttempts = 16;
  for (int attempt = 0; fd_ < 0 && attempt < kMostAttempts; ++attempt) {
    const int length = snprintf(name_, sizeof name_, "%s%d", kPrefix, getpid());
    if (attempt > 0) snprintf(name_ + length, sizeof name_ - length, "%08d", attempt);
    if (mkdirat(parent_, name_, 0755) != 0) return;
    fd_ = open_locked(parent_, name_);
    if (fd_ < 0) unlinkat(parent_, name_, AT_REMOVEDIR);
  }
  if (fd_ < 0) return;
  if (faccessat(fd_, "cgroup.kill", W_OK, 0) == 0 &&
      faccessat(parent_, "cgroup.procs", W_OK, 0) == 0) {
    return;
  }
  close(fd_);
  fd_ = -1;
  unlinkat(parent_, name_, AT_REMOVEDIR);
}

Cgroup::Cgroup(int fd, const char* name)
    : fd_(fd), parent_(openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  snprintf(name_, sizeof name_, "%s", name);
}

Cgroup::~Cgroup() {
  if (fd_ >= 0) {
    remove_directory(parent_, name_);
    close(fd_);
  }
  if (parent_ >= 0) close(parent_);
}

bool Cgroup::kill() const { return fd_ >= 0 && write_one(fd_, "cgroup.kill"); }

}  // namespace ddprun::agent::warden
