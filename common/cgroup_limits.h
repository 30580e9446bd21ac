// SPDX-License-Identifier: Apache-2.0
// The cgroups that a process is in, and how much memory and how many CPUs they let it use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// The kernel keeps a controller's files for a process there: version 2 or 1, also in a container.
struct CgroupPlace {
  // As this process sees them, nearest first, up to the top of what is mounted here.
  std::vector<std::string> directories;
  bool is_v2 = false;
};

// The place of a process, by the text of its /proc/PID/cgroup and of our /proc/self/mountinfo.
// nullopt: no such hierarchy is mounted here, or the cgroup lies outside it.
std::optional<CgroupPlace> cgroup_place(std::string_view controller, std::string_view cgroup_text,
                                        std::string_view mountinfo_text);

// The OOM killer's work is counted there. With version 2 the nearest directory that has a
// memory.events counts.
struct MemoryCgroup : CgroupPlace {
  const char* events_file() const { return is_v2 ? "memory.events" : "memory.oom_control"; }
  const char* limit_file() const { return is_v2 ? "memory.max" : "memory.limit_in_bytes"; }
};
std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup_text,
                                          std::string_view mountinfo_text);

// The number in a memory.max or memory.limit_in_bytes. nullopt: there is no limit.
std::optional<std::uint64_t> memory_limit_bytes(std::string_view text);

// The machine's memory, or the least limit of this process' memory cgroups where that is less.
// `root` stands before /proc and the cgroups' directories: a test's directory.
std::uint64_t usable_memory_bytes(const std::string& root = "");

// The least CPU quota of this process' cgroups, in CPUs: 1.5. nullopt: there is none.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace ddprun
