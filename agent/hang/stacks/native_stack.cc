// SPDX-License-Identifier: Apache-2.0
// Unwinding by elfutils' libdw, with what the program files themselves say: no separate debug
// files are looked for, on disk or elsewhere.
#include "agent/hang/stacks/native_stack.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>

namespace ddprun::agent {
namespace {

constexpr std::chrono::milliseconds kStopTime{300};

int no_debug_files(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                   GElf_Word, char**) {
  return -1;
}

// Holds the main thread of a process in a ptrace stop.
class Seized {
 public:
  explicit Seized(pid_t pid) : pid_(pid) {
    if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) {
      const int error = errno;
      note_ = std::string("can't be traced: ") + std::strerror(error);
      if (error == EPERM) note_ += " (kernel.yama.ptrace_scope, or another tracer)";
      return;
    }
    ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const auto deadline = std::chrono::steady_clock::now() + kStopTime;
    while (!stopped_) {
      int status = 0;
      stopped_ = ::waitpid(pid, &status, __WALL | WNOHANG) == pid && WIFSTOPPED(status);
      // Without an event it is a signal that came before the interruption: it has to go on to it.
      if (stopped_ && status >> 16 == 0) signal_ = WSTOPSIG(status);
      const auto left = deadline - std::chrono::steady_clock::now();
      if (stopped_ || left <= left.zero()) break;
      // May be an earlier one's.
      const timespec limit{0, std::chrono::nanoseconds(left).count()};
      ::sigtimedwait(&child, nullptr, &limit);
    }
    if (!stopped_) note_ = "could not be stopped in 300 ms (state D?)";
  }
  ~Seized() {
    if (stopped_) ::ptrace(PTRACE_DETACH, pid_, nullptr, static_cast<std::intptr_t>(signal_));
  }
  Seized(const Seized&) = delete;
  Seized& operator=(const Seized&) = delete;

  bool stopped() const { return stopped_; }
  const std::string& note() const { return note_; }

 private:
  const pid_t pid_;
  bool stopped_ = false;
  int signal_ = 0;  // that it was about to be delivered
  std::string note_;
};

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
  Dwfl_Module* module = dwfl_addrmodule(dwfl, pc);
  const char* symbol = module != nullptr ? dwfl_module_addrname(module, pc) : nullptr;
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(pc));
  std::string text = symbol != nullptr ? demangled(symbol) : address;
  const char* file = module != nullptr ? dwfl_module_info(module, nullptr, nullptr, nullptr,
                                                          nullptr, nullptr, nullptr, nullptr)
                                       : nullptr;
  if (file == nullptr) return text;
  char program[4096];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), program, sizeof program);
  if (size > 0 && std::string(program, static_cast<std::size_t>(size)) == file) return text;
  const char* slash = std::strrchr(file, '/');
  return text + " (" + (slash != nullptr ? slash + 1 : file) + ")";
}

struct Walk {
  Dwfl* dwfl;
  pid_t pid;
  std::size_t max_frames;
  std::vector<std::string> frames;
};

int add_frame(Dwfl_Frame* frame, void* argument) {
  auto& walk = *static_cast<Walk*>(argument);
  Dwarf_Addr pc = 0;
  bool is_activation = false;
  if (!dwfl_frame_pc(frame, &pc, &is_activation)) return DWARF_CB_ABORT;
  if (pc == 0) return DWARF_CB_ABORT;
  // A return address may already belong to the next function.
  walk.frames.push_back(describe(walk.dwfl, is_activation ? pc : pc - 1, walk.pid));
  return walk.frames.size() < walk.max_frames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

}  // namespace

NativeStack native_stack(pid_t pid, std::size_t max_frames) {
  NativeStack stack;
  static const Dwfl_Callbacks callbacks{dwfl_linux_proc_find_elf, no_debug_files, nullptr, nullptr};
  const std::unique_ptr<Dwfl, void (*)(Dwfl*)> dwfl(dwfl_begin(&callbacks), dwfl_end);
  if (!dwfl || dwfl_linux_proc_report(dwfl.get(), pid) != 0 ||
      dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0) {
    stack.note = "its program files can't be read";
    return stack;
  }
  const Seized seized(pid);
  if (!seized.stopped()) {
    stack.note = seized.note();
    return stack;
  }
  constexpr bool kIsStopped = true;
  if (dwfl_linux_proc_attach(dwfl.get(), pid, kIsStopped) != 0) {
    stack.note = std::string("can't be unwound: ") + dwfl_errmsg(-1);
    return stack;
  }
  Walk walk{dwfl.get(), pid, max_frames, {}};
  if (dwfl_getthread_frames(dwfl.get(), pid, add_frame, &walk) < 0 && walk.frames.empty()) {
    stack.note = std::string("can't be unwound: ") + dwfl_errmsg(-1);
  }
  stack.frames = std::move(walk.frames);
  return stack;
}

}  // namespace ddprun::agent
