// SPDX-License-Identifier: Apache-2.0
// Reads a line of /proc/PID/stat. No C++ library: the warden uses it, too.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

namespace ddprun {

struct ProcessStat {
  char state = '?';  // as ps shows it; 'Z': ended, and not yet reaped
  pid_t parent = 0;
  uint64_t cpu_ticks = 0;    // user and system, without the children that it has waited for
  uint64_t start_ticks = 0;  // when it began, since the machine did
  uint64_t ignored = 0;      // signals that it ignores: 1 to 31, bit N − 1
  uint64_t caught = 0;       // the same for signals that it has a handler for
};

// Parses `text`, the file's content with a zero byte at its end: "PID (NAME) STATE PPID …", where
// NAME may contain anything, even ')'. False: it has another form.
inline bool parse_process_stat(const char* text, ProcessStat* stat) {
  const char* at = strrchr(text, ')');
  if (!at || at[1] != ' ' || at[2] == '\0') return false;
  at += 2;
  stat->state = *at;
  stat->cpu_ticks = 0;
  for (int field = 3;; ++field) {  // as proc(5) counts them
    if (field == 4) stat->parent = static_cast<pid_t>(strtol(at, nullptr, 10));
    if (field == 14 || field == 15) stat->cpu_ticks += strtoull(at, nullptr, 10);
    if (field == 22) break;
    at = strchr(at, ' ');
    if (!at) return false;
    ++at;
  }
  stat->start_ticks = strtoull(at, nullptr, 10);
  for (int field = 22; at && field < 33; ++field) {
    at = strchr(at, ' ');
    if (at) ++at;
  }
  stat->ignored = at ? strtoull(at, nullptr, 10) : 0;
  if (at) at = strchr(at, ' ');
  stat->caught = at ? strtoull(at + 1, nullptr, 10) : 0;
  return true;
}

// Reads an open /proc/PID/stat, which stays with its process. False: that process has ended.
inline bool read_process_stat_file(int fd, ProcessStat* stat) {
  char text[1024];  // more than a line ever has
  const ssize_t size = pread(fd, text, sizeof text - 1, 0);
  if (size <= 0) return false;
  text[size] = '\0';
  return parse_process_stat(text, stat);
}

// False: there is no such process.
inline bool read_process_stat(pid_t pid, ProcessStat* stat) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool is_read = read_process_stat_file(fd, stat);
  close(fd);
  return is_read;
}

}  // namespace ddprun
