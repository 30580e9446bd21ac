// SPDX-License-Identifier: Apache-2.0
// Registers and stack of processes' main threads, copied. Only for that are they stopped, never by
// a signal: each by a process of its own that opens no file, touches nothing but memory and lets go
// by its end, however that comes. Calls that the kernel doesn't restart after a stop (epoll_wait,
// semop, io_getevents: signal(7)) return EINTR in the stopped process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::agent {

struct StackSnapshot {
  std::string note;                      // why there is none; empty: there is one
  std::vector<std::uint64_t> registers;  // by DWARF number
  std::uint64_t pc = 0;
  std::uint64_t stack_begin = 0;  // the address of `stack`; the stack pointer is in its first page
  std::vector<std::byte> stack;   // as much as is mapped of 256 KiB
  std::chrono::nanoseconds held{0};  // how long it was stopped
};

// In the order of `pids`, all at the same time, within 0.5 s: who can't be stopped by then (state
// D) isn't held any longer. Needs SIGCHLD blocked, and its default action. One thread of this
// process at a time.
std::vector<StackSnapshot> take_snapshots(const std::vector<pid_t>& pids);

}  // namespace ddprun::agent
