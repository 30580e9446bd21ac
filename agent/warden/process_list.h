// SPDX-License-Identifier: Apache-2.0
// Processes to come back to. No C++ library.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace ddprun::agent::warden {

// Some processes. One that has ended is in it no more, whoever has its number now.
class ProcessList {
 public:
  ProcessList() = default;
  ~ProcessList();
  ProcessList(const ProcessList&) = delete;
  ProcessList& operator=(const ProcessList&) = delete;

  // Nothing happens without memory, or where it has ended.
  void add(pid_t pid);
  bool has(pid_t pid) const;
  // As has(), and removes it.
  bool take(pid_t pid);
  bool is_empty() const { return size_ == 0; }

 private:
  struct Entry {
    pid_t pid;
    uint64_t start_ticks;
  };
  Entry* entries_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;

  size_t find(pid_t pid) const;  // size_: not there
};

}  // namespace ddprun::agent::warden
