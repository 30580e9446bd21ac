// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stacks/stack_snapshot.h"

#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStopTime{300};
constexpr std::chrono::milliseconds kWholeTime{500};
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxStackPages = 64;

// What a copying process leaves in memory that it shares with us.
struct Slot {
  std::atomic<bool> is_complete = false;
  std::array<char, 160> note{};
  user_regs_struct registers{};
  std::chrono::nanoseconds held{0};
  std::uint64_t stack_begin = 0;
  std::size_t stack_bytes = 0;
  alignas(kPageBytes) std::byte stack[kMaxStackPages * kPageBytes];
};

// The memory of all slots: zeroes, and only what is written takes room.
class Slots {
 public:
  explicit Slots(std::size_t count) : bytes_(count * sizeof(Slot)) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) memory_ = static_cast<Slot*>(memory);
  }
  ~Slots() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  bool ok() const { return memory_ != nullptr; }
  Slot& operator[](std::size_t i) { return memory_[i]; }

 private:
  const std::size_t bytes_;
  Slot* memory_ = nullptr;
};

#if defined(__x86_64__)
std::uint64_t stack_pointer(const user_regs_struct& r) { return r.rsp; }
std::uint64_t program_counter(const user_regs_struct& r) { return r.rip; }
std::vector<std::uint64_t> by_dwarf_number(const user_regs_struct& r) {
  return {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
          r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
}
#elif defined(__aarch64__)
std::uint64_t stack_pointer(const user_regs_struct& r) { return r.sp; }
std::uint64_t program_counter(const user_regs_struct& r) { return r.pc; }
std::vector<std::uint64_t> by_dwarf_number(const user_regs_struct& r) {
  std::vector<std::uint64_t> all(std::begin(r.regs), std::end(r.regs));
  all.push_back(r.sp);
  return all;
}
#else
#error "no native stacks on this architecture: build without libdw"
#endif

// Waits for SIGCHLD, an earlier one's perhaps. False: `deadline` is over.
bool await_child(Clock::time_point deadline) {
  const auto left = deadline - Clock::now();
  if (left <= left.zero()) return false;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec limit{0, std::chrono::nanoseconds(left).count()};
  ::sigtimedwait(&child, nullptr, &limit);
  return true;
}

// Page by page: the stack may end before.
std::size_t copy_stack(pid_t pid, std::uint64_t begin, std::byte* to) {
  std::array<iovec, kMaxStackPages> pages;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i] = {reinterpret_cast<void*>(begin + i * kPageBytes), kPageBytes};
  }
  const iovec local{to, kMaxStackPages * kPageBytes};
  const ssize_t size = ::process_vm_readv(pid, &local, 1, pages.data(), pages.size(), 0);
  return size < 0 ? 0 : static_cast<std::size_t>(size);
}

void copy(pid_t pid, Slot& slot) {
  iovec registers{&slot.registers, sizeof slot.registers};
  if (::ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &registers) != 0 ||
      registers.iov_len != sizeof slot.registers) {
    std::snprintf(slot.note.data(), slot.note.size(), "its registers can't be read");
    return;
  }
  slot.stack_begin = stack_pointer(slot.registers) & ~std::uint64_t{kPageBytes - 1};
  slot.stack_bytes = copy_stack(pid, slot.stack_begin, slot.stack);
}

void stop_and_copy(pid_t pid, Slot& slot) {
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) {
    const int error = errno;
    std::snprintf(slot.note.data(), slot.note.size(), "can't be traced: %s%s", std::strerror(error),
                  error == EPERM ? " (kernel.yama.ptrace_scope, or another tracer)" : "");
    return;
  }
  const auto deadline = Clock::now() + kStopTime;
  ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr);
  int status = 0;
  while (::waitpid(pid, &status, __WALL | WNOHANG) != pid) {
    if (await_child(deadline)) continue;
    std::snprintf(slot.note.data(), slot.note.size(), "could not be stopped in 300 ms (state D?)");
    return;
  }
  if (!WIFSTOPPED(status)) {
    std::snprintf(slot.note.data(), slot.note.size(), "has ended");
    return;
  }
  const auto stopped = Clock::now();
  copy(pid, slot);
  // Without an event it is a signal that came before the interruption: it has to go on to it.
  const std::intptr_t signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
  ::ptrace(PTRACE_DETACH, pid, nullptr, signal);
  slot.held = Clock::now() - stopped;
}

[[noreturn]] void copy_and_end(pid_t pid, Slot& slot, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  stop_and_copy(pid, slot);
  slot.is_complete = true;
  ::_exit(0);
}

StackSnapshot snapshot(const Slot& slot) {
  StackSnapshot result;
  result.note = slot.note.data();
  if (!slot.is_complete) result.note = "could not be copied in 0.5 s";
  if (!result.note.empty()) return result;
  result.registers = by_dwarf_number(slot.registers);
  result.pc = program_counter(slot.registers);
  result.stack_begin = slot.stack_begin;
  result.stack.assign(slot.stack, slot.stack + slot.stack_bytes);
  result.held = slot.held;
  return result;
}

}  // namespace

std::vector<StackSnapshot> take_snapshots(const std::vector<pid_t>& pids) {
  std::vector<StackSnapshot> snapshots(pids.size());
  Slots slots(std::max<std::size_t>(pids.size(), 1));
  if (!slots.ok()) {
    for (StackSnapshot& each : snapshots) each.note = "no memory for a copy of its stack";
    return snapshots;
  }
  const auto deadline = Clock::now() + kWholeTime;
  const pid_t self = ::getpid();
  std::vector<pid_t> copying;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    new (&slots[i]) Slot;
    const pid_t child = ::fork();
    if (child == 0) copy_and_end(pids[i], slots[i], self);
    if (child > 0) copying.push_back(child);
  }
  do {
    std::erase_if(copying, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) == child; });
  } while (!copying.empty() && await_child(deadline));
  for (const pid_t child : copying) ::kill(child, SIGKILL);
  for (std::size_t i = 0; i < pids.size(); ++i) snapshots[i] = snapshot(slots[i]);
  return snapshots;
}

}  // namespace ddprun::agent
