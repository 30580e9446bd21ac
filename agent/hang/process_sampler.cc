// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/process_sampler.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <memory>

#include "common/process_stat.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxFamily = 256;

std::string proc_path(pid_t pid, const std::string& file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

UniqueFd open_file(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// Returns the file's first bytes; empty: it can't be read (any more).
template <std::size_t Size>
std::string_view read_start(int fd, std::array<char, Size>& buffer) {
  const ssize_t size = ::pread(fd, buffer.data(), buffer.size(), 0);
  return size <= 0 ? std::string_view()
                   : std::string_view(buffer.data(), static_cast<std::size_t>(size));
}

std::uint64_t number_at(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Returns nullopt also if the process has ended and is not reaped yet.
std::optional<ProcessStat> read_stat(int fd) {
  ProcessStat stat;
  if (!read_process_stat_file(fd, &stat)) return std::nullopt;
  return stat.state == 'Z' || stat.state == 'X' ? std::nullopt : std::optional(stat);
}

// Returns the sum of rchar and wchar, the first two lines. It includes the children that it has
// waited for.
std::uint64_t read_bytes(int fd) {
  std::array<char, 256> buffer;
  const std::string_view text = read_start(fd, buffer);
  std::uint64_t bytes = 0;
  for (const std::string_view name : {"rchar: ", "wchar: "}) {
    const std::size_t at = text.find(name);
    if (at != std::string_view::npos) bytes += number_at(text.substr(at + name.size()));
  }
  return bytes;
}

std::chrono::microseconds ticks_to_time(std::uint64_t ticks) {
  static const std::int64_t tick_us = 1'000'000 / ::sysconf(_SC_CLK_TCK);
  return std::chrono::microseconds(static_cast<std::int64_t>(ticks) * tick_us);
}

// Appends the children that any thread of `pid` has.
void add_children(pid_t pid, std::vector<pid_t>& out) {
  const std::string tasks = proc_path(pid, "task");
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(tasks.c_str()), ::closedir);
  if (!directory) return;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    const UniqueFd file = open_file(tasks + "/" + entry->d_name + "/children");
    if (!file) continue;
    std::array<char, 4096> buffer;
    std::string_view text = read_start(file.get(), buffer);
    while (!text.empty()) {
      const auto child = static_cast<pid_t>(number_at(text));
      if (child > 0) out.push_back(child);
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos) break;
      text.remove_prefix(space + 1);
    }
  }
}

constexpr std::size_t kMaxChildren = 2;
constexpr int kMaxWrappers = 4;

enum class Takes { kNothing, kDescriptor };
struct Call {
  long number;
  const char* name;
  Takes takes;
};

// The system calls in which a worker can wait. Some machines don't have the old ones.
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
  const UniqueFd file = open_file(path);
  std::array<char, 512> buffer;
  const std::string_view text = file ? read_start(file.get(), buffer) : "";
  return std::string(text.substr(0, text.find('\n')));
}

std::string file_behind(pid_t pid, unsigned long descriptor) {
  std::array<char, 512> buffer;
  const std::string link = proc_path(pid, "fd/" + std::to_string(descriptor));
  const ssize_t size = ::readlink(link.c_str(), buffer.data(), buffer.size());
  if (size <= 0) return "descriptor " + std::to_string(descriptor);
  return std::string(buffer.data(), static_cast<std::size_t>(size));
}

}  // namespace

std::vector<pid_t> descendants(pid_t pid, std::size_t limit) {
  std::vector<pid_t> all;
  add_children(pid, all);
  for (std::size_t i = 0; i < all.size() && all.size() < limit; ++i) add_children(all[i], all);
  if (all.size() > limit) all.resize(limit);
  return all;
}

ProcessSampler::ProcessSampler(pid_t pid) : pid_(pid) { open_files(); }

// Opens both files, or none while descriptors or memory run out. Otherwise bytes that are counted
// only from some moment on would look like progress.
void ProcessSampler::open_files() {
  stat_ = open_file(proc_path(pid_, "stat"));
  if (!stat_) return;
  io_ = open_file(proc_path(pid_, "io"));
  if (!io_ && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) stat_.reset();
}

std::optional<ProcessFacts> ProcessSampler::look(bool with_family) {
  if (!stat_) open_files();
  const auto stat = stat_ ? read_stat(stat_.get()) : std::nullopt;
  if (!stat) return std::nullopt;
  const std::uint64_t bytes = io_ ? read_bytes(io_.get()) : 0;
  if (with_family) look_at_family(bytes);
  ProcessFacts facts;
  facts.state = stat->state;
  facts.cpu = ticks_to_time(stat->cpu_ticks + family_used_.cpu_ticks);
  facts.bytes = bytes + family_used_.bytes;
  return facts;
}

std::vector<pid_t> ProcessSampler::family() const {
  std::vector<pid_t> pids{pid_};
  for (const auto& [key, used] : family_) pids.push_back(key.first);
  return pids;
}

void ProcessSampler::forget_family() {
  family_.clear();
  family_known_ = false;
}

void ProcessSampler::look_at_family(std::uint64_t own_bytes) {
  decltype(family_) now;
  std::map<pid_t, std::uint64_t> grown{
      {pid_, own_bytes - own_bytes_}};  // bytes since the last look
  own_bytes_ = own_bytes;
  for (const pid_t member : descendants(pid_, kMaxFamily)) {
    const UniqueFd stat_file = open_file(proc_path(member, "stat"));
    const auto stat = stat_file ? read_stat(stat_file.get()) : std::nullopt;
    if (!stat) continue;
    const UniqueFd io_file = open_file(proc_path(member, "io"));
    const Member used{stat->parent, stat->cpu_ticks, io_file ? read_bytes(io_file.get()) : 0};
    const auto key = std::pair(member, stat->start_ticks);
    const auto before = family_.find(key);
    if (before != family_.end()) {
      family_used_.cpu_ticks += used.cpu_ticks - before->second.cpu_ticks;
      grown[member] = used.bytes - before->second.bytes;
      family_used_.bytes += grown[member];
    } else if (family_known_) {  // it was born since the last look
      family_used_.cpu_ticks += used.cpu_ticks;
      family_used_.bytes += used.bytes;
    }
    now[key] = used;
  }
  // A parent's count includes the children that it has reaped. Their old bytes are no progress.
  for (const auto& [key, before] : family_) {
    const auto parent = grown.find(before.parent);
    if (now.count(key) != 0 || parent == grown.end()) continue;
    const std::uint64_t old = std::min(before.bytes, parent->second);
    parent->second -= old;
    family_used_.bytes -= old;
  }
  family_ = std::move(now);
  family_known_ = true;
}

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
  const std::string file = file_behind(pid, descriptor);
  return text + " of " + (descriptor == STDIN_FILENO ? "stdin (" + file + ")" : file);
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
