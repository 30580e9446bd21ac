// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/waiting_place.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "agent/hang/process_sampler.h"
#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxChildren = 2;
constexpr int kMaxWrappers = 4;

enum class Takes { kNothing, kDescriptor };
struct Call {
  long number;
  const char* name;
  Takes takes;
};

// Those in which a worker can wait. Not every machine has the old ones.
constexpr Call kCalls[] = {
    {SYS_read, "read", Takes::kDescriptor},
    {SYS_write, "write", Takes::kDescriptor},
    {SYS_readv, "readv", Takes::kDescriptor},
    {SYS_writev, "writev", Takes::kDescriptor},
    {SYS_pread64, "pread", Takes::kDescriptor},
    {SYS_pwrite64, "pwrite", Takes::kDescriptor},
    {SYS_preadv, "preadv", Takes::kDescriptor},
    {SYS_pwritev, "pwritev", Takes::kDescriptor},
    {SYS_recvfrom, "recv", Takes::kDescriptor},
    {SYS_recvmsg, "recvmsg", Takes::kDescriptor},
    {SYS_recvmmsg, "recvmmsg", Takes::kDescriptor},
    {SYS_sendto, "send", Takes::kDescriptor},
    {SYS_sendmsg, "sendmsg", Takes::kDescriptor},
    {SYS_sendmmsg, "sendmmsg", Takes::kDescriptor},
    {SYS_connect, "connect", Takes::kDescriptor},
    {SYS_accept, "accept", Takes::kDescriptor},
    {SYS_accept4, "accept", Takes::kDescriptor},
    {SYS_close, "close", Takes::kDescriptor},
    {SYS_fsync, "fsync", Takes::kDescriptor},
    {SYS_fdatasync, "fdatasync", Takes::kDescriptor},
    {SYS_sync_file_range, "sync_file_range", Takes::kDescriptor},
    {SYS_ftruncate, "ftruncate", Takes::kDescriptor},
    {SYS_fallocate, "fallocate", Takes::kDescriptor},
    {SYS_flock, "flock", Takes::kDescriptor},
    {SYS_fcntl, "fcntl", Takes::kDescriptor},
    {SYS_ioctl, "ioctl", Takes::kDescriptor},
    {SYS_getdents64, "getdents", Takes::kDescriptor},
    {SYS_lseek, "lseek", Takes::kDescriptor},
    {SYS_fstat, "fstat", Takes::kDescriptor},
    {SYS_copy_file_range, "copy_file_range", Takes::kDescriptor},
    {SYS_sendfile, "sendfile", Takes::kDescriptor},
    {SYS_openat, "openat", Takes::kNothing},
    {SYS_newfstatat, "fstatat", Takes::kNothing},
    {SYS_statx, "statx", Takes::kNothing},
    {SYS_renameat2, "rename", Takes::kNothing},
    {SYS_unlinkat, "unlink", Takes::kNothing},
    {SYS_sync, "sync", Takes::kNothing},
    {SYS_msync, "msync", Takes::kNothing},
    {SYS_mmap, "mmap", Takes::kNothing},
    {SYS_munmap, "munmap", Takes::kNothing},
    {SYS_madvise, "madvise", Takes::kNothing},
    {SYS_futex, "futex", Takes::kNothing},
    {SYS_ppoll, "poll", Takes::kNothing},
    {SYS_pselect6, "select", Takes::kNothing},
    {SYS_epoll_pwait, "epoll_wait", Takes::kNothing},
    {SYS_nanosleep, "nanosleep", Takes::kNothing},
    {SYS_clock_nanosleep, "clock_nanosleep", Takes::kNothing},
    {SYS_wait4, "wait4", Takes::kNothing},
    {SYS_waitid, "waitid", Takes::kNothing},
    {SYS_rt_sigtimedwait, "sigtimedwait", Takes::kNothing},
    {SYS_rt_sigsuspend, "sigsuspend", Takes::kNothing},
    {SYS_io_getevents, "io_getevents", Takes::kNothing},
    {SYS_io_uring_enter, "io_uring_enter", Takes::kNothing},
    {SYS_semtimedop, "semtimedop", Takes::kNothing},
    {SYS_mq_timedreceive, "mq_receive", Takes::kNothing},
    {SYS_restart_syscall, "restart_syscall", Takes::kNothing},
    {SYS_exit_group, "exit_group", Takes::kNothing},
    {SYS_sched_yield, "sched_yield", Takes::kNothing},
#ifdef SYS_poll
    {SYS_poll, "poll", Takes::kNothing},
    {SYS_select, "select", Takes::kNothing},
    {SYS_epoll_wait, "epoll_wait", Takes::kNothing},
    {SYS_pause, "pause", Takes::kNothing},
    {SYS_open, "open", Takes::kNothing},
    {SYS_stat, "stat", Takes::kNothing},
    {SYS_rename, "rename", Takes::kNothing},
    {SYS_unlink, "unlink", Takes::kNothing},
#endif
};

std::string read_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::array<char, 512> buffer;
  const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
  std::string text(buffer.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.substr(0, text.find('\n'));
}

std::string proc_path(pid_t pid, const std::string& file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

std::string file_behind(pid_t pid, unsigned long descriptor) {
  std::array<char, 512> buffer;
  const std::string link = proc_path(pid, "fd/" + std::to_string(descriptor));
  const ssize_t size = ::readlink(link.c_str(), buffer.data(), buffer.size());
  if (size <= 0) return "descriptor " + std::to_string(descriptor);
  return std::string(buffer.data(), static_cast<std::size_t>(size));
}

}  // namespace

std::string describe_call(std::string_view line, pid_t pid) {
  long number = -1;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, number);
  if (error != std::errc() || number < 0) return {};  // "running", or not in a call
  const auto* call = std::find_if(std::begin(kCalls), std::end(kCalls),
                                  [&](const Call& each) { return each.number == number; });
  if (call == std::end(kCalls)) return "system call " + std::to_string(number);
  std::string text = std::string(call->name) + "()";
  constexpr std::string_view kHex = " 0x";
  std::string_view rest(stop, static_cast<std::size_t>(end - stop));
  if (call->takes != Takes::kDescriptor || !rest.starts_with(kHex)) return text;
  unsigned long descriptor = 0;
  constexpr int kHexadecimal = 16;
  std::from_chars(rest.data() + kHex.size(), end, descriptor, kHexadecimal);
  return text + " of " + file_behind(pid, descriptor);
}

WaitingPlace waiting_place(pid_t pid) {
  WaitingPlace place;
  place.call = describe_call(read_line(proc_path(pid, "syscall")), pid);
  place.wchan = read_line(proc_path(pid, "wchan"));
  if (place.wchan == "0") place.wchan.clear();
  if (place.call == "restart_syscall()") {
    place.call.clear();
    place.resumed = true;
  }
  return place;
}

pid_t process_at_work(pid_t worker) {
  for (int depth = 0; depth < kMaxWrappers; ++depth) {
    const std::string call = waiting_place(worker).call;
    if (!call.starts_with("wait")) return worker;
    const auto children = descendants(worker, kMaxChildren);
    if (children.empty()) return worker;
    worker = children.front();
  }
  return worker;
}

}  // namespace ddprun::agent
