// SPDX-License-Identifier: Apache-2.0
// Decides which processes get a stop's signal now, and which are left to their parent. No C++
// library.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "agent/warden/process_tree.h"
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

// A data loader is left to its parent. If the signal ended the loader first, the parent would take
// that for a failure.
class StopOrder {
 public:
  StopOrder() = default;
  ~StopOrder();
  StopOrder(const StopOrder&) = delete;
  StopOrder& operator=(const StopOrder&) = delete;

  // Begins a kStop, once. add_group() follows for each worker, at most `num_groups` times.
  void begin(int signal_number, size_t num_groups);
  void add_group(pid_t leader);

  // Sends the signal to all processes in the groups that are not left to a parent. False: none is
  // left to a parent, and nothing was sent, so each whole group can get the signal at once.
  bool ask_apart();
  // Sends the signal to those whose parent has ended by now; `all`: to all that were left to a
  // parent.
  void ask_spared(bool all);
  // Called once, when no worker is left: sends SIGTERM and SIGCONT to those that the signal has not
  // reached.
  void ask_the_rest();

 private:
  bool is_in_group(pid_t pid) const;
  // Whether the process is below one of the same program that handles the signal.
  bool is_parents_to_end(pid_t pid) const;

  // These are for signal_descendants(); `order` is this object. This one puts each process of the
  // groups in its list, and signals none.
  static Visit choose_to_sort(pid_t pid, void* order);
  static Visit choose_to_ask(pid_t pid, void* order);
  // Chooses the processes of spared_ that no parent will end any more.
  static Visit choose_spared(pid_t pid, void* order);
  // Chooses the processes that the signal has not reached, or that ignore it (a shell's "&" has
  // SIGINT and SIGQUIT ignored).
  static Visit choose_unasked(pid_t pid, void* order);

  int signal_number_ = 0;
  pid_t* groups_ = nullptr;  // their leaders
  size_t num_groups_ = 0;
  ProcessList to_ask_, spared_;
  bool spares_ = true;
  bool rest_asked_ = false;
};

}  // namespace ddprun::agent::warden
