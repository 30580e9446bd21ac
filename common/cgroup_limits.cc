// SPDX-License-Identifier: Apache-2.0
#include "common/cgroup_limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostDirectories = 32;
constexpr std::uint64_t kNoLimit = std::uint64_t{1}
                                   << 60;  // version 1 has a huge number for "none"

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take_until(list, ",") == word) return true;
  }
  return false;
}

// Returns the path from "4:memory:/a/b" if version 1 has the controller, else from "0::/a/b".
std::optional<std::string_view> path_of(std::string_view controller, std::string_view cgroup_text,
                                        bool v2) {
  while (!cgroup_text.empty()) {
    std::string_view line = take_until(cgroup_text, "\n");
    const std::string_view id = take_until(line, ":");
    const std::string_view controllers = take_until(line, ":");
    if (v2 ? id == "0" && controllers.empty() : has_word(controllers, controller)) return line;
  }
  return std::nullopt;
}

struct Mount {
  std::string_view root, point;
};

// Parses a line "31 23 0:28 ROOT MOUNT_POINT options… - TYPE SOURCE SUPER_OPTIONS".
std::optional<Mount> mount_of(std::string_view controller, std::string_view mountinfo_text,
                              bool v2) {
  while (!mountinfo_text.empty()) {
    std::string_view line = take_until(mountinfo_text, "\n");
    for (int i = 0; i < 3; ++i) take_until(line, " ");
    Mount mount;
    mount.root = take_until(line, " ");
    mount.point = take_until(line, " ");
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    line.remove_prefix(dash + 3);
    const std::string_view type = take_until(line, " ");
    take_until(line, " ");
    if (v2 ? type == "cgroup2" : type == "cgroup" && has_word(line, controller)) return mount;
  }
  return std::nullopt;
}

// Returns the file's text; empty if it can't be read.
std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

std::optional<CgroupPlace> cgroup_place(std::string_view controller, std::string_view cgroup_text,
                                        std::string_view mountinfo_text) {
  CgroupPlace result;
  auto path = path_of(controller, cgroup_text, false);
  result.is_v2 = !path;
  if (result.is_v2) path = path_of(controller, cgroup_text, true);
  const auto mount = mount_of(controller, mountinfo_text, result.is_v2);
  if (!path || !mount) return std::nullopt;
  std::string_view below = *path;
  if (mount->root != "/") {
    if (!below.starts_with(mount->root)) return std::nullopt;
    below.remove_prefix(mount->root.size());
    if (!below.empty() && below.front() != '/') return std::nullopt;
  }
  // The path is outside this process' namespace.
  if (below.find("/..") != std::string_view::npos) return std::nullopt;
  while (below.ends_with('/')) below.remove_suffix(1);
  while (result.directories.size() < kMostDirectories) {
    result.directories.push_back(std::string(mount->point) + std::string(below));
    if (below.empty()) break;
    below = below.substr(0, below.rfind('/'));
  }
  return result;
}

std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup_text,
                                          std::string_view mountinfo_text) {
  auto place = cgroup_place("memory", cgroup_text, mountinfo_text);
  if (!place) return std::nullopt;
  return MemoryCgroup{*std::move(place)};
}

std::optional<std::uint64_t> memory_limit_bytes(std::string_view text) {
  const auto bytes = parsed_number<std::uint64_t>(take_until(text, "\n"));
  return bytes && *bytes < kNoLimit ? bytes : std::nullopt;
}

std::uint64_t usable_memory_bytes(const std::string& root) {
  std::uint64_t least = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto cgroup =
      memory_cgroup(text_of(root + "/proc/self/cgroup"), text_of(root + "/proc/self/mountinfo"));
  if (!cgroup) return least;
  for (const std::string& directory : cgroup->directories) {
    const std::string file = concat(root, directory, "/", cgroup->limit_file());
    if (const auto limit = memory_limit_bytes(text_of(file))) least = std::min(least, *limit);
  }
  return least;
}

std::optional<double> cpu_quota(const std::string& root) {
  const auto place = cgroup_place("cpu", text_of(root + "/proc/self/cgroup"),
                                  text_of(root + "/proc/self/mountinfo"));
  if (!place) return std::nullopt;
  std::optional<double> least;
  for (const std::string& directory : place->directories) {
    const std::string in = concat(root, directory, "/");
    // The quota and its period in microseconds: "150000 100000", or "max 100000".
    std::string text = place->is_v2 ? text_of(in + "cpu.max")
                                    : concat(text_of(in + "cpu.cfs_quota_us"), " ",
                                             text_of(in + "cpu.cfs_period_us"));
    std::ranges::replace(text, '\n', ' ');
    std::istringstream numbers(text);
    double quota = 0, period = 0;
    // -1: there is no quota.
    if (!(numbers >> quota >> period) || quota <= 0 || period <= 0) continue;
    least = std::min(least.value_or(quota / period), quota / period);
  }
  return least;
}

int cpus_of_quota(int num_cpus, std::optional<double> quota) {
  if (!quota || *quota >= num_cpus) return num_cpus;
  const int whole = static_cast<int>(*quota);
  return std::max(1, whole < *quota ? whole + 1 : whole);
}

}  // namespace ddprun
