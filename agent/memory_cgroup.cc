// SPDX-License-Identifier: Apache-2.0
#include "agent/memory_cgroup.h"

#include <algorithm>
#include <charconv>

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostDirectories = 32;
constexpr std::uint64_t kNoLimit = std::uint64_t{1}
                                   << 60;  // version 1 has a huge number for "none"

// Takes what comes before `end` off the front of `text`; all of it where there is none.
std::string_view take(std::string_view& text, char end) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take(list, ',') == word) return true;
  }
  return false;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// "4:memory:/a/b" where version 1 has the memory controller, else "0::/a/b".
std::optional<std::string_view> path_of(std::string_view cgroup_text, bool v2) {
  while (!cgroup_text.empty()) {
    std::string_view line = take(cgroup_text, '\n');
    const std::string_view id = take(line, ':');
    const std::string_view controllers = take(line, ':');
    if (v2 ? id == "0" && controllers.empty() : has_word(controllers, "memory")) return line;
  }
  return std::nullopt;
}

struct Mount {
  std::string_view root, point;
};

// "31 23 0:28 ROOT MOUNT_POINT options… - TYPE SOURCE SUPER_OPTIONS".
std::optional<Mount> mount_of(std::string_view mountinfo_text, bool v2) {
  while (!mountinfo_text.empty()) {
    std::string_view line = take(mountinfo_text, '\n');
    for (int i = 0; i < 3; ++i) take(line, ' ');
    Mount mount;
    mount.root = take(line, ' ');
    mount.point = take(line, ' ');
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    line.remove_prefix(dash + 3);
    const std::string_view type = take(line, ' ');
    take(line, ' ');
    if (v2 ? type == "cgroup2" : type == "cgroup" && has_word(line, "memory")) return mount;
  }
  return std::nullopt;
}

}  // namespace

std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup_text,
                                          std::string_view mountinfo_text) {
  MemoryCgroup result;
  auto path = path_of(cgroup_text, false);
  result.is_v2 = !path;
  if (result.is_v2) path = path_of(cgroup_text, true);
  const auto mount = mount_of(mountinfo_text, result.is_v2);
  if (!path || !mount) return std::nullopt;
  std::string_view below = *path;
  if (mount->root != "/") {
    if (!below.starts_with(mount->root)) return std::nullopt;
    below.remove_prefix(mount->root.size());
    if (!below.empty() && below.front() != '/') return std::nullopt;
  }
  if (below.find("/..") != std::string_view::npos) return std::nullopt;  // outside our namespace
  while (below.ends_with('/')) below.remove_suffix(1);
  while (result.directories.size() < kMostDirectories) {
    result.directories.push_back(std::string(mount->point) + std::string(below));
    if (below.empty()) break;
    below = below.substr(0, below.rfind('/'));
  }
  return result;
}

std::optional<std::uint64_t> oom_kills(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    if (take(line, ' ') == "oom_kill") return number(line);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> memory_limit_bytes(std::string_view text) {
  const auto bytes = number(take(text, '\n'));
  return bytes && *bytes < kNoLimit ? bytes : std::nullopt;
}

}  // namespace ddprun::agent
