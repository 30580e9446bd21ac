// SPDX-License-Identifier: Apache-2.0
// Processes to come back to. No C++ library.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {

// Some processes. One that has ended is in it no more, whoever has its number now.
class ProcessList {
 public:
  ProcessList() = default;
  ~ProcessList() { free(entries_); }
  ProcessList(const ProcessList&) = delete;
  ProcessList& operator=(const ProcessList&) = delete;

  // Nothing happens without memory, or where it has ended.
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
  // As has(), and removes it.
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

  // size_: not there.
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
