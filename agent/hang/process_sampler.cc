// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/process_sampler.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>

#include "common/process_stat.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMaxFamily = 256;

std::string proc_path(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

UniqueFd open_file(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// The file's first bytes; empty: it can't be read (any more).
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

// nullopt also where it has ended and is not reaped yet.
std::optional<ProcessStat> read_stat(int fd) {
  ProcessStat stat;
  if (!read_process_stat_file(fd, &stat)) return std::nullopt;
  return stat.state == 'Z' || stat.state == 'X' ? std::nullopt : std::optional(stat);
}

// rchar and wchar: the first two lines. With those of the children that it has waited for.
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

}  // namespace

std::vector<pid_t> descendants(pid_t pid, std::size_t limit) {
  std::vector<pid_t> all;
  add_children(pid, all);
  for (std::size_t i = 0; i < all.size() && all.size() < limit; ++i) add_children(all[i], all);
  if (all.size() > limit) all.resize(limit);
  return all;
}

ProcessSampler::ProcessSampler(pid_t pid) : pid_(pid) { open_files(); }

// Both or none: bytes that are counted from some moment on would be news then.
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
    } else if (family_known_) {  // born since the last look
      family_used_.cpu_ticks += used.cpu_ticks;
      family_used_.bytes += used.bytes;
    }
    now[key] = used;
  }
  // What one had moved that has been waited for since is in its parent's count now: no news.
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

}  // namespace ddprun::agent
