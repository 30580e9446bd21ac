// SPDX-License-Identifier: Apache-2.0
// The native and Python stacks of processes' main threads. For the native stack a process is
// stopped only while its registers and its stack are copied. The program files are read afterwards,
// since reading them may hang.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// A copy of the registers and the stack of a process' main thread. The process is stopped just for
// the copy, and never by a signal. A process forked for this stops it, opens no file, and touches
// nothing but memory. When that one ends, in whatever way, the stopped process goes on. Calls that
// the kernel doesn't restart after a stop (epoll_wait, semop, io_getevents: signal(7)) return EINTR
// in the stopped process.
struct StackSnapshot {
  std::string note;                      // why there is none; empty: there is one
  std::vector<std::uint64_t> registers;  // by DWARF number
  std::uint64_t pc = 0;
  std::uint64_t stack_begin = 0;  // the address of `stack`; the stack pointer is in its first page
  std::vector<std::byte> stack;   // the mapped part of 256 KiB
  std::chrono::nanoseconds held{0};  // how long it was stopped
};

// Returns them in the order of `pids`. All are taken at the same time, within 0.5 s. A process that
// can't be stopped by then (state D) isn't held any longer. Needs SIGCHLD blocked, and its default
// action. One thread of this process at a time.
std::vector<StackSnapshot> take_snapshots(const std::vector<pid_t>& pids);

struct NativeStack {
  std::vector<std::string> frames;  // innermost first: "load_batch(int)", "read (libc.so.6)"
  std::string note;                 // why there are no frames, or not all
};

// Loads libdw for native_stacks(): when ranks hang, its file may not be readable.
void load_native_stacks();

// Calls `found` for each of `pids`, in their order, as soon as its stack is known, with at most
// `max_frames` frames. May hang where a program's files can't be read. Needs SIGCHLD blocked, and
// its default action. One thread of this process at a time.
void native_stacks(const std::vector<pid_t>& pids, std::size_t max_frames,
                   const std::function<void(pid_t, const NativeStack&)>& found);

// The Python stack of a process, from py-spy where that is in PATH.

// Whether the name of `pid`'s program begins with "python".
bool is_python(pid_t pid);

// Returns whether Python's debugger debugpy was started in the process: the libraries of its tracer
// are in its memory then. May hang where the process itself does.
bool has_debugpy(pid_t pid);

struct PythonStack {
  std::vector<std::string> frames;  // innermost first: "load (train.py:12)"; empty: none was found
  std::string note;                 // where there is no py-spy: that it would show more
};

// Returns the main thread's stack, at most `max_frames` frames. Waits until py-spy ends, which is
// killed if this process ends.
PythonStack python_stack(pid_t pid, std::size_t max_frames);

// Parses the output of `py-spy dump`.
std::vector<std::string> parse_py_spy(std::string_view text, std::size_t max_frames);

}  // namespace ddprun::agent
