// SPDX-License-Identifier: Apache-2.0
// The cgroups that a process is in, and how much memory and how many CPUs they let it use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// The directories with a controller's files for a process: version 2 or 1, also in a container.
struct CgroupPlace {
  // The directories as this process sees them, nearest first, up to the top of the mount.
  std::vector<std::string> directories;
  bool is_v2 = false;
};

// Finds the place of a process from the texts of its /proc/PID/cgroup and of this process'
// /proc/self/mountinfo. nullopt: no such hierarchy is mounted here, or the cgroup is outside it.
std::optional<CgroupPlace> cgroup_place(std::string_view controller, std::string_view cgroup_text,
                                        std::string_view mountinfo_text);

// The place in which the OOM killer's work is counted. With version 2 the nearest directory that
// has a memory.events counts.
struct MemoryCgroup : CgroupPlace {
  const char* events_file() const { return is_v2 ? "memory.events" : "memory.oom_control"; }
  const char* limit_file() const { return is_v2 ? "memory.max" : "memory.limit_in_bytes"; }
};
std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup_text,
                                          std::string_view mountinfo_text);

// Returns the number in a memory.max or memory.limit_in_bytes. nullopt: there is no limit.
std::optional<std::uint64_t> memory_limit_bytes(std::string_view text);

// Returns the machine's memory, or the least limit of this process' memory cgroups if that is less.
// `root` stands before /proc and the cgroups' directories; a test gives its directory.
std::uint64_t usable_memory_bytes(const std::string& root = "");

// Returns the least CPU quota of this process' cgroups, in CPUs: 1.5. nullopt: there is none.
std::optional<double> cpu_quota(const std::string& root = "");

// Returns `num_cpus`, or the quota rounded up if that is less.
int cpus_of_quota(int num_cpus, std::optional<double> quota);

}  // namespace ddprun
