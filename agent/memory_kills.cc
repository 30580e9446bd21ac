// SPDX-License-Identifier: Apache-2.0
#include "agent/memory_kills.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr char kVmstat[] = "/proc/vmstat";
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// Empty where it can't be read.
std::string file_text(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> buffer;
  while (file && text.size() < kMostBytes) {
    const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

std::string in_units(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
  return bytes < kMebi ? concat(bytes, " bytes") : concat(bytes / kMebi, " MiB");
}

}  // namespace

MemoryKills::MemoryKills(std::string root) : root_(std::move(root)) {}

std::optional<std::uint64_t> MemoryKills::read_kills(const std::string& path) const {
  return oom_kills(file_text(root_ + path));
}

std::optional<MemoryKills::Count> MemoryKills::count_of(const MemoryCgroup& cgroup) const {
  for (const std::string& directory : cgroup.directories) {
    const std::string file = directory + "/" + cgroup.events_file();
    if (const auto killed = read_kills(file)) return Count{file, *killed};
    if (!cgroup.is_v2) break;  // each has its own count there, and its parent's isn't of it
  }
  return std::nullopt;
}

void MemoryKills::begin_round() {
  if (mountinfo_.empty()) mountinfo_ = file_text(root_ + "/proc/self/mountinfo");
  cgroup_ = memory_cgroup(file_text(root_ + "/proc/self/cgroup"), mountinfo_);
  own_ = cgroup_ ? count_of(*cgroup_) : std::nullopt;
  hosts_.reset();
  if (own_) return;
  if (const auto killed = read_kills(kVmstat)) hosts_ = Count{kVmstat, *killed};
}

void MemoryKills::workers_run(const std::vector<pid_t>& pids) {
  if (own_) return;
  const auto pid = std::find_if(pids.begin(), pids.end(), [](pid_t each) { return each > 0; });
  if (pid == pids.end()) return;
  auto theirs = memory_cgroup(file_text(concat(root_, "/proc/", *pid, "/cgroup")), mountinfo_);
  if (!theirs) return;
  own_ = count_of(*theirs);
  cgroup_ = std::move(theirs);
}

// The least on the way up: the one that is reached first.
std::optional<std::uint64_t> MemoryKills::limit() const {
  std::optional<std::uint64_t> least;
  for (const std::string& directory : cgroup_->directories) {
    const auto bytes =
        memory_limit_bytes(file_text(concat(root_, directory, "/", cgroup_->limit_file())));
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  }
  return least;
}

std::string MemoryKills::explain(int signal_number) {
  const bool was_killed = signal_number == SIGKILL;
  std::optional<Count>& count = own_ ? own_ : hosts_;
  if (!count || (!own_ && !was_killed)) return {};
  const auto now = read_kills(count->file);
  if (!now || *now <= count->killed) return {};
  const std::uint64_t num = *now - count->killed;
  const std::string what = concat("ran out: the kernel's OOM killer killed ", num,
                                  num == 1 ? " process " : " processes ");
  const std::string proof = concat(count->file, ": oom_kill ", count->killed, " → ", *now);
  if (!own_) {
    return concat("perhaps ", what, "of this host while it ran (", proof,
                  "; its own memory cgroup's count can't be read)");
  }
  const auto bytes = limit();
  const std::string where = concat("in its memory cgroup while it ran (", proof,
                                   bytes ? "; limit " + in_units(*bytes) : "", ")");
  if (!was_killed) return concat("perhaps ", what, where, ", but not the worker itself");
  ++count->killed;
  return what + where;
}

}  // namespace ddprun::agent
