// SPDX-License-Identifier: Apache-2.0
// A list of processes. No C++ library.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {

// A list of processes. One that has ended is no longer in it, even if another process has its
// number.
class ProcessList {
 public:
  ProcessList() = default;
  ~ProcessList() { free(entries_); }
  ProcessList(const ProcessList&) = delete;
  ProcessList& operator=(const ProcessList&) = delete;

  // Adds a process. Does nothing if memory runs out, or if the process has ended.
  void add(pid_t pid) {
    ProcessStat stat;
    if (!read_process_stat(pid, &stat)) return;
    if (size_ == capacity_) {
      const size_t wanted = capacity_ ? capacity_ * 2 : 64;
      void* grown = realloc(entries_, wanted * sizeof(Entry));
      if (!grown) return;
      entries_ = static_cast<Entry*>(grown);
      capacity_ = wanted;
    }
    entries_[size_++] = {pid, stat.start_ticks};
  }
  bool has(pid_t pid) const { return find(pid) < size_; }
  // Does the same as has(), and removes the process.
  bool take(pid_t pid) {
    const size_t position = find(pid);
    if (position == size_) return false;
    entries_[position] = entries_[--size_];
    return true;
  }
  bool is_empty() const { return size_ == 0; }

 private:
  struct Entry {
    pid_t pid;
    uint64_t start_ticks;
  };
  Entry* entries_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;

  // Returns the entry's index; size_: not there.
  size_t find(pid_t pid) const {
    for (size_t i = 0; i < size_; ++i) {
      if (entries_[i].pid != pid) continue;
      ProcessStat stat;
      if (read_process_stat(pid, &stat) && stat.start_ticks == entries_[i].start_ticks) return i;
    }
    return size_;
  }
};

}  // namespace ddprun::agent::warden
