// SPDX-License-Identifier: Apache-2.0
// Unwinds stacks by elfutils' libdw, using only the program files: no separate debug files are
// searched for, on disk or elsewhere. The library is not linked but loaded at the program's start,
// because a wheel also runs on machines without it.
#include "agent/hang/stacks/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <elfutils/libdwfl.h>
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
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStopTime{300};
constexpr std::chrono::milliseconds kWholeTime{500};
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxStackPages = 64;

// The result of a copying process, in memory that it shares with this one.
struct Slot {
  std::atomic<bool> is_complete = false;
  std::array<char, 160> note{};
  user_regs_struct registers{};
  std::chrono::nanoseconds held{0};
  std::uint64_t stack_begin = 0;
  std::size_t stack_bytes = 0;
  alignas(kPageBytes) std::byte stack[kMaxStackPages * kPageBytes];
};

// The memory of all slots. It is all zeroes, and only written pages take room.
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

// Waits for a SIGCHLD, which may be an earlier one. False: `deadline` has passed.
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

// Copies page by page: the stack may end before the last page.
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
  // Without an event the stop is a signal that came before the interruption: the process must still
  // get it.
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

// The functions of libdw that are used here. All are null before load(), or if there is no libdw.
struct Libdw {
  decltype(&::dwfl_begin) begin = nullptr;
  decltype(&::dwfl_end) end = nullptr;
  decltype(&::dwfl_errmsg) errmsg = nullptr;
  decltype(&::dwfl_linux_proc_find_elf) linux_proc_find_elf = nullptr;
  decltype(&::dwfl_linux_proc_report) linux_proc_report = nullptr;
  decltype(&::dwfl_report_end) report_end = nullptr;
  decltype(&::dwfl_addrmodule) addrmodule = nullptr;
  decltype(&::dwfl_module_addrname) module_addrname = nullptr;
  decltype(&::dwfl_module_info) module_info = nullptr;
  decltype(&::dwfl_pid) pid = nullptr;
  decltype(&::dwfl_attach_state) attach_state = nullptr;
  decltype(&::dwfl_getthread_frames) getthread_frames = nullptr;
  decltype(&::dwfl_frame_pc) frame_pc = nullptr;
  decltype(&::dwfl_thread_state_register_pc) thread_state_register_pc = nullptr;
  decltype(&::dwfl_thread_state_registers) thread_state_registers = nullptr;

  void load() {
    void* const library = ::dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      all = all && function != nullptr;
    };
    find(begin, "dwfl_begin");
    find(end, "dwfl_end");
    find(errmsg, "dwfl_errmsg");
    find(linux_proc_find_elf, "dwfl_linux_proc_find_elf");
    find(linux_proc_report, "dwfl_linux_proc_report");
    find(report_end, "dwfl_report_end");
    find(addrmodule, "dwfl_addrmodule");
    find(module_addrname, "dwfl_module_addrname");
    find(module_info, "dwfl_module_info");
    find(pid, "dwfl_pid");
    find(attach_state, "dwfl_attach_state");
    find(getthread_frames, "dwfl_getthread_frames");
    find(frame_pc, "dwfl_frame_pc");
    find(thread_state_register_pc, "dwfl_thread_state_register_pc");
    find(thread_state_registers, "dwfl_thread_state_registers");
    if (!all) *this = {};
  }
};

Libdw libdw;

int no_debug_files(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                   GElf_Word, char**) {
  return -1;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  std::string shown = status == 0 && text ? text.get() : name;
  constexpr std::string_view kLongName =
      "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
  for (std::size_t at; (at = shown.find(kLongName)) != std::string::npos;) {
    shown.replace(at, kLongName.size(), "std::string");
  }
  return shown;
}

std::string describe(Dwfl* dwfl, Dwarf_Addr pc, pid_t pid) {
  Dwfl_Module* module = libdw.addrmodule(dwfl, pc);
  const char* symbol = module != nullptr ? libdw.module_addrname(module, pc) : nullptr;
  Dwarf_Addr start = 0;
  const char* file = module != nullptr ? libdw.module_info(module, nullptr, &start, nullptr,
                                                           nullptr, nullptr, nullptr, nullptr)
                                       : nullptr;
  // An offset in the file is the same in all processes, wherever the file is in their memory. So
  // ranks can be compared.
  char offset[32];
  std::snprintf(offset, sizeof offset, "+0x%llx", static_cast<unsigned long long>(pc - start));
  std::string text = symbol != nullptr ? demangled(symbol) : offset;
  if (file == nullptr) return symbol != nullptr ? text : "code of no file";
  char program[4096];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), program, sizeof program);
  const bool is_own = size > 0 && std::string(program, static_cast<std::size_t>(size)) == file;
  if (is_own && symbol != nullptr) return text;
  const char* slash = std::strrchr(file, '/');
  return text + " (" + (slash != nullptr ? slash + 1 : file) + ")";
}

struct Walk {
  Dwfl* dwfl;
  pid_t pid;
  const StackSnapshot* snapshot;
  std::size_t max_frames;
  std::vector<std::string> frames;
};

// Tells libdw that there is just one thread, the copied one.
pid_t next_thread(Dwfl* dwfl, void* walk, void** thread_argument) {
  const bool is_first = *thread_argument == nullptr;
  *thread_argument = walk;
  return is_first ? libdw.pid(dwfl) : 0;
}

bool read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* result, void* walk) {
  const StackSnapshot& snapshot = *static_cast<Walk*>(walk)->snapshot;
  const std::uint64_t offset = address - snapshot.stack_begin;
  if (offset >= snapshot.stack.size() || snapshot.stack.size() - offset < sizeof *result) {
    return false;
  }
  std::memcpy(result, snapshot.stack.data() + offset, sizeof *result);
  return true;
}

bool set_registers(Dwfl_Thread* thread, void* walk) {
  const StackSnapshot& snapshot = *static_cast<Walk*>(walk)->snapshot;
  const std::vector<Dwarf_Word> registers(snapshot.registers.begin(), snapshot.registers.end());
  libdw.thread_state_register_pc(thread, snapshot.pc);
  return libdw.thread_state_registers(thread, 0, static_cast<unsigned>(registers.size()),
                                      registers.data());
}

int add_frame(Dwfl_Frame* frame, void* argument) {
  auto& walk = *static_cast<Walk*>(argument);
  Dwarf_Addr pc = 0;
  bool is_activation = false;
  if (!libdw.frame_pc(frame, &pc, &is_activation)) return DWARF_CB_ABORT;
  if (pc == 0) return DWARF_CB_ABORT;
  // A return address may already belong to the next function.
  walk.frames.push_back(describe(walk.dwfl, is_activation ? pc : pc - 1, walk.pid));
  return walk.frames.size() < walk.max_frames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

NativeStack unwind(pid_t pid, const StackSnapshot& snapshot, std::size_t max_frames) {
  NativeStack stack{{}, snapshot.note};
  if (!stack.note.empty()) return stack;
  if (libdw.begin == nullptr) {
    stack.note = "no native stack: libdw is not installed (package libdw1 or elfutils-libs)";
    return stack;
  }
  static const Dwfl_Callbacks callbacks{libdw.linux_proc_find_elf, no_debug_files, nullptr,
                                        nullptr};
  static const Dwfl_Thread_Callbacks threads{next_thread,   nullptr, read_memory,
                                             set_registers, nullptr, nullptr};
  const std::unique_ptr<Dwfl, void (*)(Dwfl*)> dwfl(libdw.begin(&callbacks), libdw.end);
  if (!dwfl || libdw.linux_proc_report(dwfl.get(), pid) != 0 ||
      libdw.report_end(dwfl.get(), nullptr, nullptr) != 0) {
    stack.note = "its program files can't be read";
    return stack;
  }
  Walk walk{dwfl.get(), pid, &snapshot, max_frames, {}};
  if (!libdw.attach_state(dwfl.get(), nullptr, pid, &threads, &walk) ||
      (libdw.getthread_frames(dwfl.get(), pid, add_frame, &walk) < 0 && walk.frames.empty())) {
    stack.note = std::string("can't be unwound: ") + libdw.errmsg(-1);
  }
  stack.frames = std::move(walk.frames);
  return stack;
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

void load_native_stacks() { libdw.load(); }

void native_stacks(const std::vector<pid_t>& pids, std::size_t max_frames,
                   const std::function<void(pid_t, const NativeStack&)>& found) {
  const std::vector<StackSnapshot> snapshots = take_snapshots(pids);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    found(pids[i], unwind(pids[i], snapshots[i], max_frames));
  }
}

}  // namespace ddprun::agent
