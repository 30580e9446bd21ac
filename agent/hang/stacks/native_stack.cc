// SPDX-License-Identifier: Apache-2.0
// Unwinding by elfutils' libdw, with what the program files themselves say: no separate debug
// files are looked for, on disk or elsewhere.
#include "agent/hang/stacks/native_stack.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "agent/hang/stacks/stack_snapshot.h"

namespace ddprun::agent {
namespace {

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
  const StackSnapshot* snapshot;
  std::size_t max_frames;
  std::vector<std::string> frames;
};

// libdw's view of the one thread that was copied.
pid_t next_thread(Dwfl* dwfl, void* walk, void** thread_argument) {
  const bool is_first = *thread_argument == nullptr;
  *thread_argument = walk;
  return is_first ? dwfl_pid(dwfl) : 0;
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
  dwfl_thread_state_register_pc(thread, snapshot.pc);
  return dwfl_thread_state_registers(thread, 0, static_cast<unsigned>(registers.size()),
                                     registers.data());
}

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

NativeStack unwind(pid_t pid, const StackSnapshot& snapshot, std::size_t max_frames) {
  NativeStack stack{{}, snapshot.note};
  if (!stack.note.empty()) return stack;
  static const Dwfl_Callbacks callbacks{dwfl_linux_proc_find_elf, no_debug_files, nullptr, nullptr};
  static const Dwfl_Thread_Callbacks threads{next_thread,   nullptr, read_memory,
                                             set_registers, nullptr, nullptr};
  const std::unique_ptr<Dwfl, void (*)(Dwfl*)> dwfl(dwfl_begin(&callbacks), dwfl_end);
  if (!dwfl || dwfl_linux_proc_report(dwfl.get(), pid) != 0 ||
      dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0) {
    stack.note = "its program files can't be read";
    return stack;
  }
  Walk walk{dwfl.get(), pid, &snapshot, max_frames, {}};
  if (!dwfl_attach_state(dwfl.get(), nullptr, pid, &threads, &walk) ||
      (dwfl_getthread_frames(dwfl.get(), pid, add_frame, &walk) < 0 && walk.frames.empty())) {
    stack.note = std::string("can't be unwound: ") + dwfl_errmsg(-1);
  }
  stack.frames = std::move(walk.frames);
  return stack;
}

}  // namespace

void native_stacks(const std::vector<pid_t>& pids, std::size_t max_frames,
                   const std::function<void(pid_t, const NativeStack&)>& found) {
  const std::vector<StackSnapshot> snapshots = take_snapshots(pids);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    found(pids[i], unwind(pids[i], snapshots[i], max_frames));
  }
}

}  // namespace ddprun::agent
