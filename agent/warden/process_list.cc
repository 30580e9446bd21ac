// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/process_list.h"

#include <stdlib.h>

#include "common/process_stat.h"

namespace ddprun::agent::warden {

ProcessList::~ProcessList() { free(entries_); }

void ProcessList::add(pid_t pid) {
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

size_t ProcessList::find(pid_t pid) const {
  for (size_t i = 0; i < size_; ++i) {
    if (entries_[i].pid != pid) continue;
    ProcessStat stat;
    if (read_process_stat(pid, &stat) && stat.start_ticks == entries_[i].start_ticks) return i;
  }
  return size_;
}

bool ProcessList::has(pid_t pid) const { return find(pid) < size_; }

bool ProcessList::take(pid_t pid) {
  const size_t position = find(pid);
  if (position == size_) return false;
  entries_[position] = entries_[--size_];
  return true;
}

}  // namespace ddprun::agent::warden
